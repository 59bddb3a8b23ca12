/* A network: its plan checked and copied; its weights are put into panels by prepare.c. */
#define _POSIX_C_SOURCE 200809L
#include "internal.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST (1 << 28) /* elements of a value or a weight, as in the file format */
#define MOST_WITH_BORDER ((int64_t)1 << 30)
#define ARENA_AT_ONCE (2 << 20) /* bytes: what stays in the caches is faster than to expand weights for more images */
#define MOST_AT_ONCE 64 /* images that go through the network together */

static const kernels *const ALL[] = {
#if defined(__x86_64__)
    &lrn_avx512,
    &lrn_avx2,
#elif defined(__aarch64__)
    &lrn_neon,
#endif
    &lrn_plain,
};

int lrn_abi(void) { return LRN_ABI; }

static const kernels *available(int i) {
    for (size_t k = 0; k < sizeof ALL / sizeof *ALL; k++)
        if (ALL[k]->supported() && i-- == 0) return ALL[k];
    return NULL;
}

const char *lrn_kernels_name(int i) {
    const kernels *k = i < 0 ? NULL : available(i);
    return k ? k->name : NULL;
}

static int check_value(const report *r, const lrn_value *v, int64_t arena_bytes, int i) {
    if (v->type != LRN_FLOAT32 && v->type != LRN_UINT8) return lrn_wrong(r, "value %d: type %d is unknown", i, (int)v->type);
    const int32_t sizes[] = {v->height, v->width, v->channels};
    int64_t elements = 1;
    for (int k = 0; k < 3; k++) {
        if (sizes[k] < 1 || sizes[k] > LARGEST) return lrn_wrong(r, "value %d: a size of %d", i, (int)sizes[k]);
        elements *= sizes[k];
        if (elements > LARGEST) return lrn_wrong(r, "value %d: more than %d elements", i, LARGEST);
    }
    const int64_t rows = (int64_t)v->height + 2 * (int64_t)v->border_height, columns = (int64_t)v->width + 2 * (int64_t)v->border_width;
    if (v->border_height < 0 || v->border_width < 0 || v->border_height > LARGEST || v->border_width > LARGEST ||
        rows > MOST_WITH_BORDER / columns || rows * columns > MOST_WITH_BORDER / v->channels)
        return lrn_wrong(r, "value %d: a border of %d x %d is too much", i, (int)v->border_height, (int)v->border_width);
    if (v->offset < 0 || v->offset % ALIGNMENT || v->offset > arena_bytes || image_bytes(v) > arena_bytes - v->offset)
        return lrn_wrong(r, "value %d: %lld bytes at %lld do not fit %lld", i, (long long)image_bytes(v), (long long)v->offset,
                     (long long)arena_bytes);
    if (v->type == LRN_UINT8 && (!(v->step > 0) || v->step > 3e38f || v->zero < 0 || v->zero > 255))
        return lrn_wrong(r, "value %d: step %g, zero point %d", i, (double)v->step, (int)v->zero);
    return 0;
}

static int overlap(const lrn_value *a, const lrn_value *b) {
    return a->offset < b->offset + image_bytes(b) && b->offset < a->offset + image_bytes(a);
}

static int check_conv(const report *r, const lrn_step *s, const lrn_value *in, const lrn_value *out) {
    const int64_t inside = in->channels, outside = out->channels;
    if (s->groups < 1 || inside % s->groups || outside % s->groups) return lrn_wrong(r, "%d groups", (int)s->groups);
    const int32_t sizes[2] = {in->height, in->width}, outs[2] = {out->height, out->width};
    const int32_t borders[2] = {in->border_height, in->border_width};
    int64_t weights = outside * (inside / s->groups);
    for (int i = 0; i < 2; i++) {
        const int32_t k = s->kernel[i], stride = s->stride[i], pad = s->padding[i], dilation = s->dilation[i];
        if (k < 1 || k > LARGEST || stride < 1 || stride > LARGEST || pad < 0 || pad > borders[i] || dilation < 1 ||
            dilation > LARGEST)
            return lrn_wrong(r, "kernel %d, stride %d, padding %d, dilation %d", (int)k, (int)stride, (int)pad, (int)dilation);
        const int64_t last = (int64_t)(outs[i] - 1) * stride - pad + (int64_t)(k - 1) * dilation;
        if (last > (int64_t)sizes[i] - 1 + pad) return lrn_wrong(r, "reads place %lld of %d", (long long)last, (int)sizes[i]);
        weights *= k;
        if (weights > LARGEST) return lrn_wrong(r, "more than %d weights", LARGEST);
    }
    if (s->bits != 1 && s->bits != 2 && s->bits != 8 && s->bits != 32) return lrn_wrong(r, "weights of %d bits", (int)s->bits);
    if (s->bits == 32 && in->type != LRN_FLOAT32) return lrn_wrong(r, "float weights on bytes");
    if (!s->weights || s->weight_count != weights)
        return lrn_wrong(r, "%lld weights, %lld expected", (long long)s->weight_count, (long long)weights);
    if (!s->scale || !s->bias || s->channel_count != outside)
        return lrn_wrong(r, "scales of %lld channels, %lld expected", (long long)s->channel_count, (long long)outside);
    return 0;
}

static int same_size(const lrn_value *a, const lrn_value *b) {
    return a->height == b->height && a->width == b->width && a->channels == b->channels;
}

static int spreads_over(const lrn_value *a, const lrn_value *b) { /* each size is b's, or 1 */
    return (a->height == b->height || a->height == 1) && (a->width == b->width || a->width == 1) &&
           (a->channels == b->channels || a->channels == 1);
}

static int same_meaning(const lrn_value *a, const lrn_value *b) {
    return a->type == b->type && (a->type == LRN_FLOAT32 || (a->step == b->step && a->zero == b->zero));
}

static int check_pool(const report *r, const lrn_step *s, const lrn_value *in, const lrn_value *out) {
    if (s->pool != LRN_MAX && s->pool != LRN_AVERAGE) return lrn_wrong(r, "pool %d", (int)s->pool);
    if (in->channels != out->channels) return lrn_wrong(r, "channels differ");
    if (s->pool == LRN_MAX && !same_meaning(in, out)) return lrn_wrong(r, "a maximum keeps its type and step");
    const int64_t count = (int64_t)out->height + out->width;
    if (!s->windows || s->window_count != 3 * count) return lrn_wrong(r, "%lld windows", (long long)s->window_count);
    for (int64_t i = 0; i < count; i++) {
        const int32_t *w = s->windows + 3 * i, size = i < out->height ? in->height : in->width;
        if (w[0] < 0 || w[0] >= w[1] || w[1] > size || w[2] < 1 || w[2] > LARGEST)
            return lrn_wrong(r, "window %lld: %d to %d of %d", (long long)i, (int)w[0], (int)w[1], (int)size);
    }
    return 0;
}

static int check_step(const report *r, const lrn_value *values, int32_t count, const lrn_step *s) {
    if (s->kind < 0 || s->kind >= LRN_KINDS) return lrn_wrong(r, "kind %d is unknown", (int)s->kind);
    if (s->input < 0 || s->input >= count || s->output < 0 || s->output >= count) return lrn_wrong(r, "no such value");
    const int two = s->kind == LRN_ADD || s->kind == LRN_MULTIPLY;
    if (two && (s->other < 0 || s->other >= count)) return lrn_wrong(r, "no such value");
    const lrn_value *in = values + s->input, *out = values + s->output;
    if (overlap(in, out) || (two && overlap(values + s->other, out)))
        return lrn_wrong(r, "the output lies over an input");
    if (s->activation < LRN_NONE || s->activation > LRN_ABS) return lrn_wrong(r, "activation %d", (int)s->activation);
    switch (s->kind) {
    case LRN_CONV: return check_conv(r, s, in, out);
    case LRN_POOL: return check_pool(r, s, in, out);
    case LRN_AFFINE:
        if (!s->scale || !s->bias || s->channel_count != out->channels) return lrn_wrong(r, "scales of %lld channels", (long long)s->channel_count);
        return same_size(in, out) ? 0 : lrn_wrong(r, "sizes differ");
    case LRN_ADD: return same_size(in, out) && same_size(values + s->other, out) ? 0 : lrn_wrong(r, "sizes differ");
    case LRN_MULTIPLY: return same_size(in, out) && spreads_over(values + s->other, out) ? 0 : lrn_wrong(r, "sizes differ");
    case LRN_SIGNS: return lrn_check_signs(r, s, in, out);
    case LRN_PLACE: {
        const int32_t a[3] = {in->channels, in->height, in->width}, b[3] = {out->channels, out->height, out->width};
        if (s->axis < 0 || s->axis > 2 || s->start < 0) return lrn_wrong(r, "axis %d from %d", (int)s->axis, (int)s->start);
        for (int i = 0; i < 3; i++)
            if (i == s->axis ? a[i] > b[i] - s->start : a[i] != b[i]) return lrn_wrong(r, "a part does not fit");
        return 0;
    }
    case LRN_RESHAPE:
        if (!same_meaning(in, out)) return lrn_wrong(r, "a reshape keeps its type and step");
        if (s->axis < 0 || s->axis > 2) return lrn_wrong(r, "axis %d", (int)s->axis);
        return (int64_t)in->height * in->width * in->channels == (int64_t)out->height * out->width * out->channels ? 0 : lrn_wrong(r, "sizes differ");
    default: /* softmax */
        if (s->axis < 0 || s->axis > 2) return lrn_wrong(r, "axis %d", (int)s->axis);
        return same_size(in, out) ? 0 : lrn_wrong(r, "sizes differ");
    }
}

static void *keep(const void *from, int64_t bytes) {
    void *copy = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (copy && from) memcpy(copy, from, (size_t)bytes);
    return copy;
}

static int prepare_step(const report *r, lrn_network *net, step *s) {
    if (s->plan.kind == LRN_CONV) return lrn_prepare_conv(r, net, s);
    if (s->plan.kind == LRN_SIGNS) return lrn_prepare_signs(r, net, s);
    if (s->plan.kind == LRN_POOL) {
        s->windows = keep(s->plan.windows, s->plan.window_count * (int64_t)sizeof(int32_t));
        if (!s->windows) return lrn_wrong(r, "out of memory");
    } else if (s->plan.kind == LRN_AFFINE) {
        s->scale = keep(s->plan.scale, s->plan.channel_count * (int64_t)sizeof(float));
        s->bias = keep(s->plan.bias, s->plan.channel_count * (int64_t)sizeof(float));
        if (!s->scale || !s->bias) return lrn_wrong(r, "out of memory");
        net->weight_bytes += s->plan.channel_count * 8;
    }
    return 0;
}

static int build(report *r, lrn_network *net, const lrn_value *values, const lrn_step *steps, const char *name) {
    for (int i = 0; !net->kernels && available(i); i++)
        if (!name || !strcmp(name, available(i)->name)) net->kernels = available(i);
    if (!net->kernels) return lrn_wrong(r, "no kernels '%.40s' for this CPU", name ? name : "");
    if (net->arena_bytes < 1 || net->arena_bytes > ((int64_t)1 << 40)) return lrn_wrong(r, "an arena of %lld bytes", (long long)net->arena_bytes);
    if (net->input < 0 || net->input >= net->value_count || net->output < 0 || net->output >= net->value_count)
        return lrn_wrong(r, "no such input or output");
    for (int32_t i = 0; i < net->value_count; i++)
        if (check_value(r, values + i, net->arena_bytes, i)) return 1;
    net->values = keep(values, net->value_count * (int64_t)sizeof *values);
    net->steps = calloc((size_t)net->step_count + 1, sizeof *net->steps);
    net->pool = pool_create();
    if (!net->values || !net->steps || !net->pool) return lrn_wrong(r, "out of memory");
    for (int32_t i = 0; i < net->step_count; i++) {
        r->step = i;
        if (check_step(r, net->values, net->value_count, steps + i)) return 1;
        net->steps[i].plan = steps[i];
        net->steps[i].phases = 1;
        if (prepare_step(r, net, net->steps + i)) return 1;
        /* the caller's arrays may go now */
        net->steps[i].plan.weights = NULL;
        net->steps[i].plan.scale = net->steps[i].plan.bias = NULL;
        net->steps[i].plan.windows = NULL;
    }
    return 0;
}

lrn_network *lrn_create(const lrn_value *values, int32_t value_count, const lrn_step *steps, int32_t step_count,
                        int32_t input, int32_t output, int64_t arena_bytes, const char *kernels, char *message,
                        size_t message_size) {
    report r = {message, message_size, -1};
    if (!values || value_count < 1 || step_count < 0 || (step_count && !steps)) {
        lrn_wrong(&r, "no values or steps");
        return NULL;
    }
    lrn_network *net = calloc(1, sizeof *net);
    if (!net) {
        lrn_wrong(&r, "out of memory");
        return NULL;
    }
    net->value_count = value_count;
    net->step_count = step_count;
    net->input = input;
    net->output = output;
    net->arena_bytes = arena_bytes;
    if (build(&r, net, values, steps, kernels)) {
        lrn_destroy(net);
        return NULL;
    }
    return net;
}

int lrn_run(lrn_network *net, const float *x, int64_t batch, float *y, int threads) {
    if (!net || batch < 0 || threads < 1 || threads > 1024 || (batch && (!x || !y))) return 2;
    const int64_t size_in = numbers_of(net->values + net->input), size_out = numbers_of(net->values + net->output);
    int64_t at_once = ARENA_AT_ONCE / (net->arena_bytes + net->transformed_bytes);
    at_once = at_once < 1 ? 1 : at_once > MOST_AT_ONCE ? MOST_AT_ONCE : at_once;
    for (int64_t done = 0, images, portions; done < batch; done += images * portions) {
        images = batch - done < at_once ? batch - done : at_once;
        portions = (batch - done) / (images * threads) * threads; /* the same number for each thread ... */
        if (!portions) portions = 1;                              /* ... and the rest is for all together */
        if (pool_run(net, x + done * size_in, images, portions, y + done * size_out, threads)) return 1;
    }
    return 0;
}

int64_t lrn_bytes(const lrn_network *net) { return net ? net->weight_bytes : 0; }

void lrn_destroy(lrn_network *net) {
    if (!net) return;
    pool_destroy(net->pool);
    for (int32_t i = 0; net->steps && i < net->step_count; i++) {
        conv *c = &net->steps[i].conv;
        free(c->panels_data);
        free(c->scale);
        free(c->bias);
        free(c->zero_sum);
        lrn_forget_signs(&net->steps[i].signs);
        free(net->steps[i].windows);
        free(net->steps[i].scale);
        free(net->steps[i].bias);
    }
    free(net->steps);
    free(net->values);
    free(net);
}
