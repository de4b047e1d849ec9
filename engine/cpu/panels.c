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

int panels_pack(struct panels *out, enum panel_kind bf16_kind, const struct weight *const *weights,
                const struct weight *const *biases, int count, struct kvf_err *err)
{
    int bf16 = 1, biased = 0;
    int64_t outputs = 0;
    for (int i = 0; i < count; i++) {
        outputs += weights[i]->rows;
        bf16 &= weights[i]->dtype == DTYPE_BF16;
        biased |= biases != NULL && biases[i]->data != NULL;
    }
    memset(out, 0, sizeof *out);
    out->kind = bf16 ? bf16_kind : PANEL_F32;
    out->outputs = (int)outputs;
    out->inputs = (int)weights[0]->cols;
    out->count = (int)((outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS);

    size_t inputs = ((size_t)out->inputs + 1) / 2 * 2;
    size_t bytes = (size_t)out->count * PANEL_OUTPUTS * inputs * (bf16 ? sizeof(uint16_t) : sizeof(float));
    bytes = (bytes + 63) / 64 * 64;
    out->data = aligned_alloc(64, bytes);
    if (biased) out->bias = calloc((size_t)out->count * PANEL_OUTPUTS, sizeof(float));
    if (out->data == NULL || (biased && out->bias == NULL)) {
        panels_free(out);
        return kvf_fail(err, KVF_ENOMEM, "packing a weight matrix %lld x %d: no memory for %zu bytes",
                        (long long)outputs, (int)weights[0]->cols, bytes);
    }
    memset(out->data, 0, bytes);
    out->bytes = (int64_t)bytes;

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
    free(panels->data);
    free(panels->bias);
    panels->data = NULL;
    panels->bias = NULL;
}
