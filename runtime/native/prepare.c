/* A convolution made ready: how it will be computed, and its weights in the order that this wants. */
#define _POSIX_C_SOURCE 200809L
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define WINOGRAD_CHANNELS 16 /* fewer, and the transforms cost more than they save */
#define WINOGRAD_SIDE 4

static int greatest(const int8_t *weights, int64_t count) {
    int most = 0;
    for (int64_t i = 0; i < count; i++) {
        const int size = weights[i] < 0 ? -weights[i] : weights[i];
        most = size > most ? size : most;
    }
    return most;
}

/* Overwrite field `code` of `bits` bits: 2 bits hold value + 1, 1 bit holds value > 0. */
static void put_code(uint8_t *byte, int bits, int code, int value) {
    const int shift = bits * code, field = bits == 2 ? value + 1 : value > 0;
    *byte = (uint8_t)((*byte & ~(((1 << bits) - 1) << shift)) | (field << shift));
}

/* A weight of -1, 0, +1 (or any, AS_THEY_ARE) to its place among the weights of 16 lanes (ROW_CODES: 4). */
static void put_weight(const conv *c, const kernels *k, int bytes, uint8_t *data, int64_t lane, int64_t element, int value) {
    if (c->layout == BY_CHANNEL) {
        uint8_t *tap = data + 4 * (element * whole(c->groups, PANEL) + lane);
        if (bytes)
            *(int32_t *)tap = value;
        else
            *(float *)tap = (float)value;
    } else if (c->layout == ROW_CODES) {
        const int64_t inputs = block_inputs(c, k), within = element % inputs;
        uint8_t *row = data + (element / inputs * ROWS + lane) * k->row_bytes;
        put_code(row + within % k->row_bytes, c->bits, (int)(within / k->row_bytes), value);
    } else if (c->layout == PLANES) {
        const int64_t inputs = block_inputs(c, k), within = element % inputs;
        const int64_t bit = within / k->lookup_group * 4 + within % k->lookup_group;
        uint8_t *word = data + element / inputs * (4 * PANEL * c->bits) + 4 * lane + bit / 8;
        if (value < 0) word += 4 * PANEL; /* the plane of minus, if there is one */
        if (value > 0 || (value < 0 && c->bits == 2)) *word = (uint8_t)(*word | 1 << bit % 8);
    } else {
        const int64_t place = bytes ? element / QUAD * (QUAD * PANEL) + lane * QUAD + element % QUAD : element * PANEL + lane;
        const int64_t code = place % 64, span = 8 * c->bits; /* 64 codes lie in so many bytes */
        if (c->layout == CODES)
            put_code(data + place / 64 * span + code % span, c->bits, (int)(code / span), value);
        else if (bytes)
            ((int8_t *)data)[place] = (int8_t)value;
        else
            ((float *)data)[place] = (float)value;
    }
}

static void *aligned_zeros(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, (size_t)bytes + ALIGNMENT)) return NULL;
    return memset(memory, 0, (size_t)bytes + ALIGNMENT);
}

/* Rows, runs and strides: what lies side by side in memory is one run. */
static void describe(conv *c, const lrn_step *plan, const lrn_value *in, const lrn_value *out) {
    const int bytes = in->type == LRN_UINT8;
    const int64_t per_group = in->channels / plan->groups;
    const int merged = plan->groups == 1 && plan->dilation[1] == 1; /* neighbours in a row: one run */
    c->groups = plan->groups;
    c->outputs = out->channels / plan->groups;
    c->panels = (c->outputs + PANEL - 1) / PANEL;
    c->rows = plan->kernel[0];
    c->runs = merged ? 1 : plan->kernel[1];
    c->run = (int32_t)(merged ? plan->kernel[1] * per_group : per_group);
    c->row_stride = plan->dilation[0] * pitch(in);
    c->run_stride = (int64_t)plan->dilation[1] * in->channels;
    c->group_stride = per_group;
    if (merged && (c->rows == 1 || c->row_stride == c->run)) {
        c->run *= c->rows;
        c->rows = 1;
        c->vector = out->height == 1 && out->width == 1;
    }
    c->padded_run = bytes ? (int32_t)whole(c->run, QUAD) : c->run;
    c->depth = whole((int64_t)c->rows * c->runs * c->padded_run, QUAD);
    c->by_channel = plan->groups > 1 && plan->groups == in->channels && plan->groups == out->channels;
    c->winograd = plan->groups == 1 && !bytes && in->channels >= WINOGRAD_CHANNELS && out->channels >= WINOGRAD_CHANNELS &&
                  out->height >= WINOGRAD_SIDE && out->width >= WINOGRAD_SIDE;
    for (int i = 0; i < 2; i++) {
        const int size = plan->kernel[i];
        c->winograd = c->winograd && plan->stride[i] == 1 && plan->dilation[i] == 1 && (size == 3 || size == 5 || size == 6);
        c->pieces[i] = (size + 2) / 3;
        c->tiles[i] = ((i ? out->width : out->height) + 1) / 2;
    }
}

/* For Winograd's way, the taps of a channel in a piece of the kernel lie together. */
static int64_t winograd_element(const conv *c, const lrn_step *plan, int64_t channels, int64_t i) {
    const int64_t row = i / channels / plan->kernel[1], column = i / channels % plan->kernel[1];
    const piece p = piece_of(c, plan->kernel, row / 3, column / 3);
    return p.before * channels + i % channels * p.rows * p.columns + row % 3 * p.columns + column % 3;
}

static int choose_layout(const report *r, conv *c, const lrn_step *plan, int bytes) {
    const int8_t *codes = plan->bits == 32 ? NULL : plan->weights;
    const int most = codes ? greatest(codes, plan->weight_count) : 0;
    if (plan->bits <= 2 && most > 1) return lrn_wrong(r, "a weight of %d in %d bits", most, (int)plan->bits);
    if (plan->bits == 1)
        for (int64_t i = 0; i < plan->weight_count; i++)
            if (!codes[i]) return lrn_wrong(r, "a weight of 0 in 1 bit");
    if (bytes && c->depth * 255 * (most ? most : 1) > INT32_MAX)
        return lrn_wrong(r, "sums of %lld terms overflow", (long long)c->depth);
    c->bits = plan->bits;
    if (c->bits <= 2)
        c->layout = !bytes ? PLANES : c->vector ? ROW_CODES : CODES;
    else if (c->bits == 8)
        c->bits = !bytes ? 32 : most > 64 ? 16 : 8;
    if (c->by_channel) {
        c->layout = BY_CHANNEL;
        c->bits = 32;
    }
    if (c->layout == CODES && c->run != c->padded_run) c->bits = 2; /* padding must be 0 */
    c->flush = 32767 / (510 * (most ? most : 1) + 1);
    if (c->flush < 1) c->flush = 1;
    return 0;
}

/* Memory that a thread needs for itself. */
static int64_t scratch_for(const conv *c, const kernels *k) {
    const int64_t weights = c->depth * PANEL;
    if (c->layout == ROW_CODES) return c->blocks * block_inputs(c, k); /* the input, filled up */
    const int64_t expanded = c->layout == PLANES ? c->blocks * block_inputs(c, k) * PANEL * 4 : c->layout == CODES ? weights : 0;
    if (c->winograd) /* factors, and products that wait for their last transform */
        return expanded + k->together * WINOGRAD_PLACES * PANEL * 4 * (winograd_channels(c) + 1 + MOST_TILES);
    const int64_t tables = c->vector && c->layout == PLANES ? TABLE_BLOCKS * 8 * (4 << k->lookup_group) + c->panels * PANEL * 4 : 0;
    return k->together * expanded > tables ? k->together * expanded : tables;
}

typedef struct extent { /* of the weights in memory */
    int64_t units, unit, lanes; /* panels or groups of rows; outputs of one; outputs with padding, which have scale and bias */
} extent;

static extent measure(conv *c, const kernels *k) {
    const int64_t panels = (int64_t)c->groups * c->panels, weights = c->depth * PANEL;
    if (c->layout == BY_CHANNEL) {
        const int64_t lanes = whole(c->groups, PANEL);
        c->panel_bytes = (int64_t)c->rows * c->runs * lanes * 4;
        return (extent){1, lanes, lanes};
    }
    if (c->layout == PLANES || c->layout == ROW_CODES) {
        const int64_t inputs = block_inputs(c, k);
        c->blocks = (c->depth + inputs - 1) / inputs;
        c->panel_bytes = c->blocks * (c->layout == PLANES ? 4 * PANEL * c->bits : ROWS * k->row_bytes);
    } else {
        c->panel_bytes = c->layout == CODES ? weights / 8 * c->bits : c->bits == 32 ? 4 * weights : weights;
    }
    if (c->layout == ROW_CODES) return (extent){(c->outputs + ROWS - 1) / ROWS, ROWS, panels * PANEL};
    return (extent){panels, PANEL, panels * PANEL};
}

static void fill(conv *c, const kernels *k, const lrn_step *plan, const lrn_value *in, int64_t outputs, extent size) {
    const int bytes = in->type == LRN_UINT8;
    const int64_t length = (int64_t)c->rows * c->runs * c->run; /* weights of an output */
    const int64_t padded = size.lanes / c->groups;              /* outputs of a group; not used BY_CHANNEL */
    if (c->bits == 2 && c->layout != PLANES)
        memset(c->panels_data, 0x55, (size_t)(size.units * c->panel_bytes)); /* all fields 1: zeros */
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t at = c->by_channel ? o : o / c->outputs * padded + o % c->outputs, lane = at % size.unit;
        uint8_t *data = c->panels_data + at / size.unit * c->panel_bytes;
        int64_t sum = 0;
        for (int64_t i = 0; i < length; i++) {
            int64_t element = c->by_channel ? i : i / c->run * c->padded_run + i % c->run;
            if (c->winograd) element = winograd_element(c, plan, in->channels, i);
            if (plan->bits == 32) {
                ((float *)data)[element * size.unit + lane] = ((const float *)plan->weights)[o * length + i];
                continue;
            }
            const int value = ((const int8_t *)plan->weights)[o * length + i];
            put_weight(c, k, bytes, data, lane, element, value);
            sum += value;
        }
        c->scale[at] = bytes ? in->step * plan->scale[o] : plan->scale[o];
        c->bias[at] = plan->bias[o];
        c->zero_sum[at] = bytes ? (int32_t)(sum * in->zero) : 0;
    }
}

int lrn_prepare_conv(const report *r, lrn_network *net, step *s) {
    const lrn_value *in = net->values + s->plan.input, *out = net->values + s->plan.output;
    conv *c = &s->conv;
    const int bytes = in->type == LRN_UINT8;
    describe(c, &s->plan, in, out);
    c->winograd = c->winograd && net->kernels->winograd;
    if (choose_layout(r, c, &s->plan, bytes)) return 1;
    const extent size = measure(c, net->kernels);
    if (c->panel_bytes > INT64_MAX / size.units) return lrn_wrong(r, "too many weights");
    c->panels_data = aligned_zeros(size.units * c->panel_bytes);
    c->scale = calloc((size_t)size.lanes, sizeof(float));
    c->bias = calloc((size_t)size.lanes, sizeof(float));
    c->zero_sum = calloc((size_t)size.lanes, sizeof(int32_t));
    if (!c->panels_data || !c->scale || !c->bias || !c->zero_sum) return lrn_wrong(r, "out of memory");
    fill(c, net->kernels, &s->plan, in, out->channels, size);
    const int64_t scratch = scratch_for(c, net->kernels);
    if (scratch > net->scratch_bytes) net->scratch_bytes = scratch;
    if (c->winograd) {
        const int64_t transformed = ((int64_t)c->tiles[0] * c->tiles[1] * winograd_channels(c) + PANEL) * WINOGRAD_PLACES * 4;
        if (transformed > net->transformed_bytes) net->transformed_bytes = transformed;
        s->phases = 2;
    }
    net->weight_bytes += size.units * c->panel_bytes + size.lanes * (bytes ? 12 : 8);
    return 0;
}
