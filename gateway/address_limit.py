"""A limit on the connections of each client address, which Envoy does not have: a network filter in WebAssembly.

Envoy's own filters count the connections of a listener or a filter chain, not of an address. This module assembles a
filter of a few hundred bytes for Envoy's Wasm runtime, so that no toolchain is needed. In pseudocode:

    on a new connection:     slot = hash(address); count[slot] += 1; if count[slot] > most: close the connection
    when a connection ends:  count[hash(address)] -= 1

Envoy runs it when it has accepted a connection, before the first byte and before TLS. Each worker thread has a filter,
with counts of its own. The hash is FNV-1a from a secret start, so that nobody can choose an address that shares the
count of another one; two of them share one by chance in 1 of 65,536 cases.

Format: https://webassembly.github.io/spec/core/binary/. Host functions: Proxy-Wasm ABI 0.2.1,
https://github.com/proxy-wasm/spec/tree/main/abi-versions/v0.2.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

WASM_NAME = "address-limit.wasm"
STATE = "allm.address"  # Envoy's filter state with the address
# An IPv4 address in full, an IPv6 address as its network of 64 bits, which one client has at its disposal.
ADDRESS = "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT(64)%"
_TYPES = "type.googleapis.com/envoy.extensions.filters.network"

# The memory: the name of the property, where the host writes the place and the size of its value, the value, counts.
_PROPERTY = f"filter_state\0{STATE}".encode()
_PLACE, _SIZE, _VALUE, _COUNTS, _SLOTS = 64, 68, 1024, 65_536, 65_536
_DOWNSTREAM = 2  # proxy_close_stream's word for the client's connection
_FNV_PRIME = 16_777_619

# Instructions.
_IF, _BLOCK, _LOOP, _END = b"\x04\x40", b"\x02\x40", b"\x03\x40", b"\x0b"
_BRANCH, _BRANCH_IF, _RETURN, _DROP = b"\x0c", b"\x0d", b"\x0f", b"\x1a"
_LOAD, _LOAD_BYTE, _STORE = b"\x28\x02\x00", b"\x2d\x00\x00", b"\x36\x02\x00"
_NOT, _ABOVE, _AT_LEAST = b"\x45", b"\x4b", b"\x4f"  # comparisons are unsigned
_ADD, _SUBTRACT, _MULTIPLY, _AND, _XOR, _LEFT, _RIGHT = b"\x6a", b"\x6b", b"\x6c", b"\x71", b"\x73", b"\x74", b"\x76"
_I32 = b"\x7f"
# Functions, the host's first.
_GET_PROPERTY, _CLOSE_STREAM, _VERSION, _ALLOCATE, _SLOT, _OPENED, _CLOSED = range(7)
_NOTHING, _ONE_TO_ONE, _FOUR_TO_ONE, _TWO_TO_NOTHING = range(4)  # types


def network_filters(module: Path) -> list[dict[str, Any]]:
    """Returns Envoy's network filters around a module that was written to a file."""
    address = {"text_format_source": {"inline_string": ADDRESS}}
    state = {"object_key": STATE, "factory_key": "envoy.string", "format_string": address}
    code = {"local": {"filename": str(module)}}
    config = {
        "name": "address_limit",
        "failure_policy": "FAIL_OPEN",
        "vm_config": {"vm_id": "address_limit", "runtime": "envoy.wasm.runtime.v8", "code": code},
    }
    return [
        {
            "name": "envoy.filters.network.set_filter_state",
            "typed_config": {"@type": f"{_TYPES}.set_filter_state.v3.Config", "on_new_connection": [state]},
        },
        {
            "name": "envoy.filters.network.wasm",
            "typed_config": {"@type": f"{_TYPES}.wasm.v3.Wasm", "config": config},
        },
    ]


def assemble(most: int, start: int) -> bytes:
    """Returns the module. `most`: connections of an address in a worker thread. `start`: 32 secret bits of the hash."""
    types = [_signature(0, 0), _signature(1, 1), _signature(4, 1), _signature(2, 0)]
    imports = [
        _name("env") + _name("proxy_get_property") + b"\x00" + _number(_FOUR_TO_ONE),
        _name("env") + _name("proxy_close_stream") + b"\x00" + _number(_ONE_TO_ONE),
    ]
    functions = [_NOTHING, _ONE_TO_ONE, _ONE_TO_ONE, _ONE_TO_ONE, _TWO_TO_NOTHING]
    exports = {
        "proxy_abi_version_0_2_1": _VERSION,
        "proxy_on_memory_allocate": _ALLOCATE,
        "proxy_on_new_connection": _OPENED,
        "proxy_on_downstream_connection_close": _CLOSED,
    }
    code = [
        _function(0, b""),
        _function(0, _constant(_VALUE)),  # the host asks for memory only for the address
        _function(3, _slot(start)),
        _function(1, _opened(most)),
        _function(1, _closed()),
    ]
    pages = (_COUNTS + 4 * _SLOTS) // 65_536
    return b"\0asm\x01\0\0\0" + b"".join(
        (
            _section(1, types),
            _section(2, imports),
            _section(3, map(_number, functions)),
            _section(5, [b"\x00" + _number(pages)]),
            _section(
                7, [_name("memory") + b"\x02\x00", *(_name(k) + b"\x00" + _number(v) for k, v in exports.items())]
            ),
            _section(10, code),
            _section(11, [b"\x00" + _constant(0) + _END + _number(len(_PROPERTY)) + _PROPERTY]),
        )
    )


def _slot(start: int) -> bytes:
    """The place of an address's count; 0: the host does not know the address, as on a Unix socket."""
    digest, at, end = 1, 2, 3
    return b"".join(
        (
            *map(_constant, (0, len(_PROPERTY), _PLACE, _SIZE)),
            _call(_GET_PROPERTY),
            _IF + _constant(0) + _RETURN + _END,
            _constant(start - (start >> 31 << 32)) + _set(digest),
            _constant(_PLACE) + _LOAD + _set(at),
            _get(at) + _constant(_SIZE) + _LOAD + _ADD + _set(end),
            _BLOCK + _LOOP,
            _get(at) + _get(end) + _AT_LEAST + _BRANCH_IF + _number(1),
            _get(digest) + _get(at) + _LOAD_BYTE + _XOR + _constant(_FNV_PRIME) + _MULTIPLY + _set(digest),
            _get(at) + _constant(1) + _ADD + _set(at),
            _BRANCH + _number(0) + _END + _END,
            _get(digest) + _get(digest) + _constant(16) + _RIGHT + _XOR,  # folded: the low bits alone know less
            _constant(_SLOTS - 1) + _AND + _constant(2) + _LEFT + _constant(_COUNTS) + _ADD,
        )
    )


def _opened(most: int) -> bytes:
    """The count of the address goes up; above `most` the connection is closed, which counts it down again."""
    slot = 1
    return b"".join(
        (
            _constant(0) + _call(_SLOT) + _set(slot),
            _get(slot) + _NOT + _IF + _constant(0) + _RETURN + _END,
            _get(slot) + _get(slot) + _LOAD + _constant(1) + _ADD + _STORE,
            _get(slot) + _LOAD + _constant(most) + _ABOVE,
            _IF + _constant(_DOWNSTREAM) + _call(_CLOSE_STREAM) + _DROP + _constant(1) + _RETURN + _END,
            _constant(0),
        )
    )


def _closed() -> bytes:
    """The count of the address goes down."""
    slot = 2
    return b"".join(
        (
            _constant(0) + _call(_SLOT) + _set(slot),
            _get(slot) + _IF + _get(slot) + _get(slot) + _LOAD + _constant(1) + _SUBTRACT + _STORE + _END,
        )
    )


# --- the binary format


def _number(value: int) -> bytes:
    """An unsigned number in LEB128."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


def _constant(value: int) -> bytes:
    """The instruction for a constant of 32 bits, in signed LEB128."""
    found = b"\x41"
    while not -64 <= value < 64:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value & 127])


def _get(variable: int) -> bytes:
    return b"\x20" + _number(variable)


def _set(variable: int) -> bytes:
    return b"\x21" + _number(variable)


def _call(function: int) -> bytes:
    return b"\x10" + _number(function)


def _name(text: str) -> bytes:
    return _number(len(text)) + text.encode()


def _signature(arguments: int, results: int) -> bytes:
    return b"\x60" + _number(arguments) + _I32 * arguments + _number(results) + _I32 * results


def _function(variables: int, code: bytes) -> bytes:
    declared = _number(1) + _number(variables) + _I32 if variables else _number(0)
    body = declared + code + _END
    return _number(len(body)) + body


def _section(kind: int, entries: Iterable[bytes]) -> bytes:
    listed = list(entries)
    body = _number(len(listed)) + b"".join(listed)
    return bytes([kind]) + _number(len(body)) + body
