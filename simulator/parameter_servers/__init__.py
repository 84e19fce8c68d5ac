"""Workers that push gradients to servers and pull weights from them, in step or not."""
