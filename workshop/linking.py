"""An object file joined to one image that runs at any address, for a loader of a few lines.

Only what LLVM makes for Linux on x86-64 with its large code model is joined: every reference is a
whole address (``R_X86_64_64``), nothing is written to. LLVM itself loads other object files.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

_SECTION, _SYMBOL, _REFERENCE = Struct("<2I4Q2I2Q"), Struct("<I2BH2Q"), Struct("<Q2Iq")
_X86_64, _WHOLE_ADDRESS = 62, 1
_REFERENCES, _EMPTY = 4, 8
_WRITTEN, _LOADED = 1, 2


def joined(code: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Give the image and what its loader must know; None where that is not all there is to it.

    Returns
    -------
    bytes
        Of the image. At each of ``offsets`` stand eight bytes to which its own address is added.
    dict
        ``offsets``; ``library``: where addresses of the C library's functions go, by name;
        ``starts``: where symbols lie.
    """
    if code[:6] != b"\x7fELF\x02\x01" or int.from_bytes(code[18:20], "little") != _X86_64:
        return None
    start, count = int.from_bytes(code[40:48], "little"), int.from_bytes(code[60:62], "little")
    sections = list(_SECTION.iter_unpack(code[start : start + count * _SECTION.size]))
    image, places = bytearray(), dict[int, int]()
    for number, (_, kind, flags, _, offset, size, _, _, align, _) in enumerate(sections):
        if flags & _LOADED and size:
            if flags & _WRITTEN or kind == _EMPTY:
                return None
            image += bytes(-len(image) % align)
            places[number] = len(image)
            image += code[offset : offset + size]
    offsets, library, starts = list[int](), dict[str, list[int]](), dict[str, int]()
    for _, kind, _, _, offset, size, link, target, _, _ in sections:
        if kind != _REFERENCES or target not in places:
            continue
        table, names = sections[link], sections[sections[link][6]][4]
        symbols = list(_SYMBOL.iter_unpack(code[table[4] : table[4] + table[5]]))
        for name, info, _, section, value, _ in symbols:
            if name and info >> 4 and section in places:
                starts[_text(code, names + name)] = places[section] + value
        for at, how, symbol, added in _REFERENCE.iter_unpack(code[offset : offset + size]):
            name, _, _, section, value, _ = symbols[symbol]
            if how != _WHOLE_ADDRESS:
                return None
            at += places[target]
            if section in places:
                offsets.append(at)
                image[at : at + 8] = (places[section] + value + added).to_bytes(8, "little")
            else:
                library.setdefault(_text(code, names + name), []).append(at)
    return bytes(image), {"offsets": offsets, "library": library, "starts": starts}


def _text(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode()
