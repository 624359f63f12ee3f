"""A small ViTPose, once in torch and once in paddle, for the walk-through of PaDiff's documents.

The networks of that walk-through live in PaddleDetection and mmpose. These have the same parts, written as each
framework's people write them: a vision transformer with attention and drop path, a head of deconvolutions that draws a
heatmap a joint, a loss of keypoints with weights, and loaders of a few made-up pictures with people in them.
"""
