/* Runs a network that a test wrote to a file (see test_other_cpus.py), and writes what it gives: for emulated CPUs. */
#include "lrnets.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct header {
    int64_t value_count, step_count, input, output, arena_bytes, batch, x, y_count;
} header;

static const void *at(const char *content, const void *place) { return place ? content + (size_t)place : NULL; }

int main(int count, char **arguments) {
    if (count != 4) return 64;
    FILE *file = fopen(arguments[1], "rb");
    if (!file) return 65;
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    char *content = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!content || fread(content, 1, size, file) != size) return 66;
    fclose(file);
    const header *h = (const header *)content;
    const lrn_value *values = (const lrn_value *)(h + 1);
    lrn_step *steps = (lrn_step *)(values + h->value_count);
    for (int64_t i = 0; i < h->step_count; i++) { /* places in the file become addresses */
        steps[i].weights = at(content, steps[i].weights);
        steps[i].scale = at(content, steps[i].scale);
        steps[i].bias = at(content, steps[i].bias);
        steps[i].windows = at(content, steps[i].windows);
    }
    char message[400] = "";
    lrn_network *network = lrn_create(values, (int32_t)h->value_count, steps, (int32_t)h->step_count, (int32_t)h->input,
                                      (int32_t)h->output, h->arena_bytes, arguments[3], message, sizeof message);
    if (!network) {
        fprintf(stderr, "%s\n", message);
        return 67;
    }
    float *y = malloc((size_t)h->y_count * sizeof(float));
    if (!y || lrn_run(network, (const float *)(content + h->x), h->batch, y, 2)) return 68;
    file = fopen(arguments[2], "wb");
    if (!file || fwrite(y, sizeof(float), (size_t)h->y_count, file) != (size_t)h->y_count) return 69;
    fclose(file);
    lrn_destroy(network);
    free(y);
    free(content);
    return 0;
}
