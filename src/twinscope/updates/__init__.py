"""What optimizers do: the update of one parameter, as values; judged alone, and explained."""
