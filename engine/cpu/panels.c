#include "engine/cpu/panels.h"

#include <stdlib.h>
#include <string.h>

static int64_t panels_offset(const struct panels *panels, int64_t output, int64_t input)
{
    int64_t panel = output / PANEL_OUTPUTS, lane = output % PANEL_OUTPUTS;
    switch (panels->kind) {
    case PANEL_F32:
        return (panel * panels->inputs + input) * PANEL_OUTPUTS + lane;
    case PANEL_BF16:
        return (panel * panels->inputs + input) * PANEL_OUTPUTS + (lane % 8) * 2 + lane / 8;
    case PANEL_BF16_PAIRS:
        break;
    }
    return ((panel * ((panels->inputs + 1) / 2) + input / 2) * PANEL_OUTPUTS + lane) * 2 + input % 2;
}

/* Whether the stack stays bf16, and its rows. */
static int stack_shape(const struct weight *const *weights, int count, int64_t *outputs)
{
    int bf16 = 1;
    *outputs = 0;
    for (int i = 0; i < count; i++) {
        *outputs += weights[i]->rows;
        bf16 &= weights[i]->dtype == DTYPE_BF16;
    }
    return bf16;
}

int64_t panels_bytes(const struct weight *const *weights, int count)
{
    int64_t outputs, bf16 = stack_shape(weights, count, &outputs), inputs = (weights[0]->cols + 1) / 2 * 2;
    int64_t panels = (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    return (panels * PANEL_OUTPUTS * inputs * (bf16 ? 2 : 4) + 63) / 64 * 64;
}

int panels_pack(struct panels *out, enum panel_kind bf16_kind, const struct weight *const *weights,
                const struct weight *const *biases, int count, void *memory, struct kvf_err *err)
{
    int biased = 0;
    int64_t outputs, bf16 = stack_shape(weights, count, &outputs);
    for (int i = 0; i < count; i++) biased |= biases != NULL && biases[i]->data != NULL;
    *out = (struct panels){.kind = bf16 ? bf16_kind : PANEL_F32,
                           .outputs = (int)outputs,
                           .inputs = (int)weights[0]->cols,
                           .count = (int)((outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS),
                           .data = memory,
                           .bytes = panels_bytes(weights, count)};
    if (biased) out->bias = calloc((size_t)out->count * PANEL_OUTPUTS, sizeof(float));
    if (biased && out->bias == NULL) {
        return kvf_fail(err, KVF_ENOMEM, "packing a weight matrix %lld x %d: no memory for its bias",
                        (long long)outputs, out->inputs);
    }

    int64_t first = 0;
    for (int i = 0; i < count; i++) {
        for (int64_t row = 0; row < weights[i]->rows; row++) {
            for (int64_t col = 0; col < out->inputs; col++) {
                int64_t from = row * out->inputs + col, to = panels_offset(out, first + row, col);
                if (bf16)
                    memcpy((uint16_t *)out->data + to, (const char *)weights[i]->data + 2 * from, 2);
                else
                    ((float *)out->data)[to] = weight_at(weights[i], from);
            }
            if (biased && biases[i]->data != NULL) out->bias[first + row] = weight_at(biases[i], row);
        }
        first += weights[i]->rows;
    }
    return 0;
}

void panels_free(struct panels *panels)
{
    free(panels->bias);
    panels->bias = NULL;
}
