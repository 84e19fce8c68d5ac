"""The live explorer of ``foreshard serve``: a question comes in, the answer goes to a page."""
