"""Every node once more as loops over single numbers, without a look at reference.py.

Sums of floats are exact (math.fsum) and rounded once; whole numbers are Python's.
"""

import itertools
import math

import numpy as np

f32 = np.float32


def quantized(x, entry):
    """The byte for a float32 number."""
    step, zero = entry
    scaled = float(f32(x) * (f32(1) / f32(step)))
    if math.isnan(scaled):
        return zero
    if math.isinf(scaled):
        return 255 if scaled > 0 else 0
    return min(max(round(scaled) + zero, 0), 255)  # Python rounds half to even


def real(value, entry):
    """The float32 number of a held one."""
    return f32(value) if entry is None else f32(int(value) - entry[1]) * f32(entry[0])


def activated(y, activation):
    if activation.kind == "leaky":
        return y * f32(activation.slope) if y < 0 else y
    if activation.kind == "sign":
        return f32(1) if y >= 0 else f32(-1)
    if activation.kind == "abs":
        return -y if y < 0 else y
    if activation.kind == "clamp":
        if activation.low is not None and y < f32(activation.low):
            y = f32(activation.low)
        if activation.high is not None and y > f32(activation.high):
            y = f32(activation.high)
    return y


def weighted(products, entry, whole, scale, bias):
    """scale * sum + bias of (weight, held value) pairs."""
    if entry is not None and whole:
        total = sum(int(w) * (int(q) - entry[1]) for w, q in products)
        assert -(2**31) <= total < 2**31
        factor = f32(entry[0]) if scale is None else f32(entry[0]) * scale
        y = f32(total) * factor
        return y if bias is None else y + bias
    total = math.fsum(float(w) * float(real(x, entry)) for w, x in products)
    return f32(total * float(1 if scale is None else scale) + float(0 if bias is None else bias))


def conv2d(node, x, entry, weight, scale, bias):
    batch, _, height, width = x.shape
    out, per_group, rows, columns = weight.shape
    down, right = node.stride
    tall = (height + 2 * node.padding[0] - node.dilation[0] * (rows - 1) - 1) // down + 1
    wide = (width + 2 * node.padding[1] - node.dilation[1] * (columns - 1) - 1) // right + 1
    y = np.empty((batch, out, tall, wide), f32)
    for n, o, i, j in np.ndindex(*y.shape):
        group = o // (out // node.groups)
        products = []
        for c, a, b in itertools.product(range(per_group), range(rows), range(columns)):
            row = i * down + a * node.dilation[0] - node.padding[0]
            column = j * right + b * node.dilation[1] - node.padding[1]
            if 0 <= row < height and 0 <= column < width:
                products.append((weight[o, c, a, b], x[n, group * per_group + c, row, column]))
        s, t = (None if v is None else v[o] for v in (scale, bias))
        y[n, o, i, j] = activated(weighted(products, entry, weight.dtype != f32, s, t), node.activation)
    return y


def linear(node, x, entry, weight, scale, bias):
    y = np.empty((*x.shape[:-1], len(weight)), f32)
    for *place, o in np.ndindex(*y.shape):
        s, t = (None if v is None else v[o] for v in (scale, bias))
        products = list(zip(weight[o], x[tuple(place)]))
        y[(*place, o)] = activated(weighted(products, entry, weight.dtype != f32, s, t), node.activation)
    return y


def average(numbers, entry, count):
    if entry is None:
        return f32(math.fsum(map(float, numbers)) / count)
    return f32(sum(int(q) - entry[1] for q in numbers)) * (f32(entry[0]) / f32(count))


def pool2d(node, x, entry, size):
    """By looking at each padded place; `size` is the output's height and width."""
    batch, channels, height, width = x.shape
    (kh, kw), (sh, sw), (ph, pw) = node.kernel, node.stride, node.padding
    y = np.empty((batch, channels, *size), x.dtype if node.kind == "max" else f32)
    for n, c, i, j in np.ndindex(*y.shape):
        seen, count = [], 0
        for a, b in itertools.product(range(kh), range(kw)):
            row, column = i * sh - ph + a, j * sw - pw + b
            if 0 <= row < height and 0 <= column < width:
                seen.append(x[n, c, row, column])
                count += 1
            elif node.count_padding and row < height + ph and column < width + pw:
                count += 1
        y[n, c, i, j] = max(seen) if node.kind == "max" else average(seen, entry, count)
    return y


def adaptive_pool2d(node, x, entry):
    batch, channels, height, width = x.shape
    y = np.empty((batch, channels, *node.size), x.dtype if node.kind == "max" else f32)
    for n, c, i, j in np.ndindex(*y.shape):
        rows = range(math.floor(i * height / node.size[0]), math.ceil((i + 1) * height / node.size[0]))
        columns = range(math.floor(j * width / node.size[1]), math.ceil((j + 1) * width / node.size[1]))
        seen = [x[n, c, row, column] for row in rows for column in columns]
        y[n, c, i, j] = max(seen) if node.kind == "max" else average(seen, entry, len(seen))
    return y
