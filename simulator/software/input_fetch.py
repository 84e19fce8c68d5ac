"""How a software brings a micro-batch from host memory to the device."""

from __future__ import annotations

from simulator.files import Figure, record


@record
class InputFetch:
    """Copies of a micro-batch's tokens and labels to the device, whole sequences on every rank.

    Context-parallel ranks take their share of the sequence on the device.
    """

    token_bytes: Figure = Figure(8.0, "datasheet", "torch numbers tokens in 64 bit")
    """For every token, to the stage with the embedding: its number, where sent its position."""
    label_bytes: Figure = Figure(8.0, "datasheet", "torch numbers tokens in 64 bit")
    """For every token, to the stage with the loss: its label, where sent its weight in the loss."""
    shared_bytes: Figure = Figure(0.0)
    """For every token, to both of these stages; once where one stage is both."""
    mask_bytes: Figure = Figure(0.0)
    """For every pair of tokens of a sequence, to both: an attention mask that the loader makes."""
    broadcast: bool = False
    """One rank of every tensor-parallel group copies and broadcasts to the others; otherwise every
    rank copies for itself."""
    prefetched: bool = False
    """The copy runs beside the passes of the micro-batch before, on a stream of its own; otherwise
    the forward pass waits for it: because the host does, or because a copy that the host does not
    wait for is issued on the stream of the compute."""
