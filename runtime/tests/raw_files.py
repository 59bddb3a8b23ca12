"""Packed files as others might write them, without the checks of lrnets_runtime.file."""

import json
import struct

import safetensors.numpy


def metadata_of(graph, /, **changes):
    found = {"format": "lrnets-packed", "version": "2", "graph": json.dumps(graph.to_json())} | changes
    return {key: value for key, value in found.items() if value is not None}


def write_raw(path, tensors, metadata):
    """With safetensors' own writer, and no checks."""
    path.write_bytes(safetensors.numpy.save(tensors, metadata))


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
