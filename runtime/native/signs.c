/* Layers of binary weights that see signs: what they are checked for, and their weights as bits. signs.inc runs them. */
#define _POSIX_C_SOURCE 200809L
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST (1 << 28)                 /* weights of a layer */
#define MOST_BYTES ((int64_t)1 << 30)     /* of an image's bits with their border */
#define PATCH_BYTES (16 << 10)            /* what several places see: stays in the nearest cache beside a panel */
#define MOST_PLACES 64

int lrn_check_signs(const report *r, const lrn_step *s, const lrn_value *in, const lrn_value *out) {
    const int64_t inside = in->channels, outside = out->channels;
    if (s->groups < 1 || inside % s->groups || outside % s->groups) return lrn_wrong(r, "%d groups", (int)s->groups);
    const int32_t sizes[2] = {in->height, in->width}, outs[2] = {out->height, out->width};
    int64_t weights = outside * (inside / s->groups), bytes = s->groups * whole(inside / s->groups, 8) / 8;
    for (int i = 0; i < 2; i++) {
        const int32_t k = s->kernel[i], stride = s->stride[i], pad = s->padding[i], dilation = s->dilation[i];
        if (k < 1 || k > LARGEST || stride < 1 || stride > LARGEST || pad < 0 || pad > LARGEST || dilation < 1 || dilation > LARGEST)
            return lrn_wrong(r, "kernel %d, stride %d, padding %d, dilation %d", (int)k, (int)stride, (int)pad, (int)dilation);
        const int64_t last = (int64_t)(outs[i] - 1) * stride - pad + (int64_t)(k - 1) * dilation;
        if (last > (int64_t)sizes[i] - 1 + pad) return lrn_wrong(r, "reads place %lld of %d", (long long)last, (int)sizes[i]);
        const int64_t padded = (int64_t)sizes[i] + 2 * (int64_t)pad;
        if (padded > MOST_BYTES / bytes) return lrn_wrong(r, "a padding of %d is too much", (int)pad);
        bytes *= padded;
        weights *= k;
        if (weights > LARGEST) return lrn_wrong(r, "more than %d weights", LARGEST);
    }
    if (s->bits != 1) return lrn_wrong(r, "signs meet weights of 1 bit, not of %d", (int)s->bits);
    if (!s->weights || s->weight_count != weights)
        return lrn_wrong(r, "%lld weights, %lld expected", (long long)s->weight_count, (long long)weights);
    if (!s->scale || !s->bias || s->channel_count != outside)
        return lrn_wrong(r, "scales of %lld channels, %lld expected", (long long)s->channel_count, (long long)outside);
    return 0;
}

/* A layer that covers the whole of an image without a border sees one place of many channels. */
static void describe(signs *g, const lrn_step *plan, const lrn_value *in, const lrn_value *out) {
    const int flat = plan->groups == 1 && plan->kernel[0] == in->height && plan->kernel[1] == in->width && !plan->padding[0] &&
                     !plan->padding[1] && plan->dilation[0] == 1 && plan->dilation[1] == 1 && !in->border_height && !in->border_width;
    for (int i = 0; i < 2; i++) {
        g->size[i] = flat ? 1 : i ? in->width : in->height;
        g->kernel[i] = flat ? 1 : plan->kernel[i];
    }
    g->groups = plan->groups;
    g->channels = in->channels / plan->groups * (flat ? in->height * in->width : 1);
    g->outputs = out->channels / plan->groups;
    g->panels = (g->outputs + PANEL - 1) / PANEL;
    g->group_bytes = (g->channels + 7) / 8;
    g->row_bytes = ((int64_t)g->size[1] + 2 * plan->padding[1]) * g->groups * g->group_bytes;
    g->image_bytes = whole(((int64_t)g->size[0] + 2 * plan->padding[0]) * g->row_bytes, ALIGNMENT);
    g->words = whole((int64_t)g->kernel[0] * g->kernel[1] * g->group_bytes, 8) / 8;
    const int64_t places = PATCH_BYTES / (8 * g->words);
    g->places = (int32_t)(places < 1 ? 1 : places > MOST_PLACES ? MOST_PLACES : places);
}

/* Bit c % 8 of byte (tap, c / 8) is channel c at that tap; the 16 outputs of a panel take turns, a word each. */
static int fill(const report *r, signs *g, const lrn_step *plan, int64_t lanes) {
    const int64_t taps = (int64_t)g->kernel[0] * g->kernel[1], outputs = (int64_t)g->groups * g->outputs;
    const int8_t *weight = plan->weights;
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t at = o / g->outputs * g->panels * PANEL + o % g->outputs;
        uint64_t *panel = g->panels_data + at / PANEL * g->words * PANEL + at % PANEL;
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t c = 0; c < g->channels; c++, weight++) {
                if (*weight != 1 && *weight != -1) return lrn_wrong(r, "a weight of %d in 1 bit", (int)*weight);
                if (*weight < 0) continue;
                const int64_t bit = 8 * tap * g->group_bytes + c;
                const unsigned place = (unsigned)(bit % 64 / 8 * 8); /* bytes lie in memory as they come */
                uint64_t word = (uint64_t)1 << (place + bit % 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
                word = (uint64_t)1 << (56 - place + bit % 8);
#endif
                panel[bit / 64 * PANEL] |= word;
                g->ones[tap * lanes + at]++;
            }
        g->scale[at] = plan->scale[o];
        g->bias[at] = plan->bias[o];
    }
    return 0;
}

int lrn_prepare_signs(const report *r, lrn_network *net, step *s) {
    const lrn_value *in = net->values + s->plan.input, *out = net->values + s->plan.output;
    signs *g = &s->signs;
    describe(g, &s->plan, in, out);
    const int64_t lanes = (int64_t)g->groups * g->panels * PANEL, taps = (int64_t)g->kernel[0] * g->kernel[1];
    void *panels = NULL;
    if (posix_memalign(&panels, ALIGNMENT, (size_t)(lanes * g->words * 8))) return lrn_wrong(r, "out of memory");
    g->panels_data = memset(panels, 0, (size_t)(lanes * g->words * 8));
    g->ones = calloc((size_t)(lanes * taps), sizeof(int32_t));
    g->scale = calloc((size_t)lanes, sizeof(float));
    g->bias = calloc((size_t)lanes, sizeof(float));
    if (!g->ones || !g->scale || !g->bias) return lrn_wrong(r, "out of memory");
    if (fill(r, g, &s->plan, lanes)) return 1;
    const int64_t scratch = g->places * g->words * 8;
    if (scratch > net->scratch_bytes) net->scratch_bytes = scratch;
    if (g->image_bytes > net->transformed_bytes) net->transformed_bytes = g->image_bytes;
    s->phases = 2;
    net->weight_bytes += lanes * (8 * g->words + 4 * taps + 8);
    return 0;
}

void lrn_forget_signs(signs *g) {
    free(g->panels_data);
    free(g->ones);
    free(g->scale);
    free(g->bias);
}
