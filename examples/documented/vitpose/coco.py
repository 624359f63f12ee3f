"""A few made-up pictures of people with their joints, as a COCO file and as a loader for each framework."""

import json
from pathlib import Path

import numpy as np

JOINTS = 17
IMAGE = (64, 48)
HEATMAP = (16, 12)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def annotations(path, people=4, seed=0):
    """Write a COCO file of keypoints where there is none, and give its path."""
    path = Path(path)
    if not path.is_file():
        random = np.random.default_rng(seed)
        images = [{"id": n, "file_name": f"{n:012}.jpg", "height": IMAGE[0], "width": IMAGE[1]} for n in range(people)]
        found = []
        for image in images:
            x, y = random.uniform(4, IMAGE[1] - 4, JOINTS), random.uniform(4, IMAGE[0] - 4, JOINTS)
            seen = random.integers(0, 3, JOINTS)
            keypoints = [v for joint in range(JOINTS) for v in (float(x[joint]), float(y[joint]), int(seen[joint]))]
            found.append({"id": image["id"], "image_id": image["id"], "category_id": 1, "keypoints": keypoints})
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"images": images, "annotations": found, "categories": [{"id": 1, "name": "person"}]}
        path.write_text(json.dumps(content))
    return path


def samples(path):
    """Of every person in a COCO file: the picture, the heatmaps of its joints, and which of them count."""
    content = json.loads(Path(path).read_text())
    rows, columns = np.mgrid[: HEATMAP[0], : HEATMAP[1]]
    for person in content["annotations"]:
        points = np.array(person["keypoints"]).reshape(JOINTS, 3)
        picture = np.random.default_rng(person["image_id"]).uniform(0, 1, (*IMAGE, 3))
        heatmaps = np.zeros((JOINTS, *HEATMAP), np.float32)
        for heatmap, (x, y, seen) in zip(heatmaps, points, strict=True):
            if seen:
                far = (columns - x * HEATMAP[1] / IMAGE[1]) ** 2 + (rows - y * HEATMAP[0] / IMAGE[0]) ** 2
                heatmap[:] = np.exp(-far / 2)
        yield {
            "img": ((picture - MEAN) / STD).transpose(2, 0, 1).astype(np.float32),
            "target": heatmaps,
            "target_weight": (points[:, 2:] > 0).astype(np.float32),
        }


def torch_data(path, batch_size=2):
    """A dataset and its loader, for torch."""
    import torch

    class Dataset(torch.utils.data.Dataset):
        def __init__(self):
            self.samples = list(samples(path))

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, index):
            return {name: torch.from_numpy(array) for name, array in self.samples[index].items()}

    dataset = Dataset()
    return dataset, torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=False, drop_last=False)


def paddle_data(path, batch_size=2):
    """A dataset and its loader, for paddle."""
    import paddle

    class Dataset(paddle.io.Dataset):
        def __init__(self):
            super().__init__()
            self.records = [
                {"image": s["img"], "target": s["target"], "target_weight": s["target_weight"]} for s in samples(path)
            ]

        def __len__(self):
            return len(self.records)

        def __getitem__(self, index):
            return self.records[index]

    dataset = Dataset()
    return dataset, paddle.io.DataLoader(dataset, batch_size=batch_size, shuffle=False, drop_last=False)
