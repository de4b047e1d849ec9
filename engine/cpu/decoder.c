#include "engine/cpu/decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "engine/clock.h"
#include "engine/cpu/panels.h"
#include "engine/cpu/pool.h"

_Static_assert(CPU_PAGE_ENTRIES == KV_PAGE_ENTRIES, "kernels and cache agree on the page");

/* Rows that one thread takes at a time in row-wise work. */
#define ROWS_A_TAKE 4
/* Pieces of a product for each thread: enough to even out, few enough to keep the cost of taking one small. */
#define PIECES_A_THREAD 4
/* Sequences differ in length, so attention is cut finer. */
#define ATTEND_PIECES_A_THREAD 8

struct decoder_layer {
    float *attn_norm, *mlp_norm; /* [hidden] */
    struct panels qkv;           /* q, then k, then v: [(heads + 2 kv_heads) * head_dim][hidden] */
    struct panels o, gate, up, down;
};

struct decoder {
    const struct model *model;
    const struct cpu_ops *ops;
    struct pool *pool;
    struct decoder_layer *layer; /* [layers] */
    struct panels lm_head;
    float *final_norm; /* [hidden] */
    float *inv_freq;   /* [head_dim / 2] */
    int max_rows, max_segments;
    int group, query_width, key_width; /* query heads a kv head; heads * head_dim; kv_heads * head_dim */
    unsigned char *weights;            /* all panels, one after the other */
    size_t weights_mapped;             /* bytes of that mapping */
    int64_t weights_bytes, workspace_bytes;

    /* Work buffers; row strides in floats, each rounded up to 16 so that a bf16 copy is padded with zeros. */
    int hidden_stride, qkv_stride, attended_stride, ffn_stride, vocab_stride;
    float *x;               /* [max_rows][hidden_stride] residual stream */
    float *normed;          /* [max_rows][hidden_stride] */
    float *qkv;             /* [max_rows][qkv_stride] */
    float *query;           /* [max_rows][query_width] after RoPE */
    float *key;             /* [max_rows][key_width] after RoPE */
    float *value;           /* [max_rows][key_width] */
    float *attended;        /* [max_rows][attended_stride] */
    float *gate, *up;       /* [max_rows][ffn_stride]; gate becomes silu(gate) * up */
    float *last;            /* [max_segments][hidden_stride] final norm of rows that want logits */
    float *logits;          /* [max_segments][vocab_stride] */
    float *cosines, *sines; /* [max_rows][head_dim / 2] */
    uint16_t *normed_half, *attended_half, *gate_half, *last_half; /* NULL where the set has no use for them */
    float **scratch; /* [threads] attention logits: [group][context rounded up to 16] */

    /* The pass that runs. */
    struct kv_pool *kv;
    struct segment *segments;
    int rows;
    struct row {
        struct segment *segment;
        int index; /* in the segment */
    } * row;       /* [max_rows] */
    const struct decoder_layer *now;
    int now_index;
    int attend_pieces;
    int64_t attend_ns;
};

/* ---- loading ---- */

static void *buffer_new(struct decoder *decoder, size_t count, size_t size)
{
    size_t bytes = (count * size + 63) / 64 * 64;
    void *buffer = aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (buffer == NULL) return NULL;
    memset(buffer, 0, bytes);
    decoder->workspace_bytes += (int64_t)bytes;
    return buffer;
}

static float *vector_load(const struct weight *weight)
{
    float *vector = malloc((size_t)weight->cols * sizeof *vector);
    for (int64_t i = 0; vector != NULL && i < weight->cols; i++) vector[i] = weight_at(weight, i);
    return vector;
}

/* Packs a stack of matrices behind those packed before it; in the first round (no memory yet) it only counts. */
static int stack_load(struct decoder *decoder, struct panels *out, const struct weight *const *weights,
                      const struct weight *const *biases, int count, struct kvf_err *err)
{
    int rc = 0;
    if (decoder->weights != NULL) {
        unsigned char *memory = decoder->weights + decoder->weights_bytes;
        rc = panels_pack(out, decoder->ops->bf16_kind, weights, biases, count, memory, err);
    }
    decoder->weights_bytes += panels_bytes(weights, count);
    return rc;
}

static int matrix_load(struct decoder *decoder, struct panels *out, const struct weight *weight,
                       const struct weight *bias, struct kvf_err *err)
{
    return stack_load(decoder, out, &weight, bias == NULL ? NULL : &bias, 1, err);
}

/* In the order of use: what follows a matrix is what the pass reads next. */
static int matrices_load(struct decoder *decoder, struct kvf_err *err)
{
    const struct model *model = decoder->model;
    decoder->weights_bytes = 0;
    int rc = 0;
    for (int l = 0; rc == 0 && l < model->config.layers; l++) {
        const struct model_layer *in = &model->layer[l];
        struct decoder_layer *out = &decoder->layer[l];
        const struct weight *qkv[] = {&in->q, &in->k, &in->v}, *bias[] = {&in->q_bias, &in->k_bias, &in->v_bias};
        rc = stack_load(decoder, &out->qkv, qkv, bias, 3, err);
        if (rc == 0) rc = matrix_load(decoder, &out->o, &in->o, &in->o_bias, err);
        if (rc == 0) rc = matrix_load(decoder, &out->gate, &in->gate, &in->gate_bias, err);
        if (rc == 0) rc = matrix_load(decoder, &out->up, &in->up, &in->up_bias, err);
        if (rc == 0) rc = matrix_load(decoder, &out->down, &in->down, &in->down_bias, err);
    }
    return rc == 0 ? matrix_load(decoder, &decoder->lm_head, &model->lm_head, NULL, err) : rc;
}

static int weights_load(struct decoder *decoder, struct kvf_err *err)
{
    const struct model *model = decoder->model;
    decoder->layer = calloc((size_t)model->config.layers, sizeof *decoder->layer);
    decoder->final_norm = vector_load(&model->final_norm);
    decoder->inv_freq = malloc((size_t)model->config.head_dim / 2 * sizeof *decoder->inv_freq);
    int ok = decoder->layer != NULL && decoder->final_norm != NULL && decoder->inv_freq != NULL;
    for (int l = 0; ok && l < model->config.layers; l++) {
        struct decoder_layer *layer = &decoder->layer[l];
        ok = (layer->attn_norm = vector_load(&model->layer[l].attn_norm)) != NULL &&
             (layer->mlp_norm = vector_load(&model->layer[l].mlp_norm)) != NULL;
    }
    if (!ok) return kvf_fail(err, KVF_ENOMEM, "loading weights of %s: no memory", model->name);
    model_rope_inv_freq(&model->config, decoder->inv_freq);

    int rc = matrices_load(decoder, err);
    if (rc != 0) return rc;
    decoder->weights_mapped = (size_t)decoder->weights_bytes;
    void *memory =
        mmap(NULL, decoder->weights_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return kvf_fail(err, KVF_ENOMEM, "packing weights of %s: no memory for %zu bytes", model->name,
                        decoder->weights_mapped);
    }
    /* One stream through all weights: with small pages of the system every other panel waits for a page walk. */
    madvise(memory, decoder->weights_mapped, MADV_HUGEPAGE);
    decoder->weights = memory;
    return matrices_load(decoder, err);
}

static int padded(int64_t width)
{
    return (int)((width + 15) / 16 * 16);
}

static int buffers_new(struct decoder *d, struct kvf_err *err)
{
    const struct model_config *config = &d->model->config;
    size_t rows = (size_t)d->max_rows, segments = (size_t)d->max_segments;
    int threads = pool_threads(d->pool);
    d->hidden_stride = padded(config->hidden);
    d->qkv_stride = padded(d->query_width + 2 * d->key_width);
    d->attended_stride = padded(d->query_width);
    d->ffn_stride = padded(config->ffn);
    d->vocab_stride = padded(config->vocab);
    int ok = (d->x = buffer_new(d, rows * d->hidden_stride, sizeof(float))) != NULL &&
             (d->normed = buffer_new(d, rows * d->hidden_stride, sizeof(float))) != NULL &&
             (d->qkv = buffer_new(d, rows * d->qkv_stride, sizeof(float))) != NULL &&
             (d->query = buffer_new(d, rows * d->query_width, sizeof(float))) != NULL &&
             (d->key = buffer_new(d, rows * d->key_width, sizeof(float))) != NULL &&
             (d->value = buffer_new(d, rows * d->key_width, sizeof(float))) != NULL &&
             (d->attended = buffer_new(d, rows * d->attended_stride, sizeof(float))) != NULL &&
             (d->gate = buffer_new(d, rows * d->ffn_stride, sizeof(float))) != NULL &&
             (d->up = buffer_new(d, rows * d->ffn_stride, sizeof(float))) != NULL &&
             (d->last = buffer_new(d, segments * d->hidden_stride, sizeof(float))) != NULL &&
             (d->logits = buffer_new(d, segments * d->vocab_stride, sizeof(float))) != NULL &&
             (d->cosines = buffer_new(d, rows * (size_t)config->head_dim / 2, sizeof(float))) != NULL &&
             (d->sines = buffer_new(d, rows * (size_t)config->head_dim / 2, sizeof(float))) != NULL &&
             (d->row = buffer_new(d, rows, sizeof *d->row)) != NULL &&
             (d->scratch = buffer_new(d, (size_t)threads, sizeof *d->scratch)) != NULL;
    for (int t = 0; ok && t < threads; t++) {
        size_t places = (size_t)d->group * (size_t)padded(config->max_positions);
        ok = (d->scratch[t] = buffer_new(d, places, sizeof(float))) != NULL;
    }
    if (ok && d->ops->to_half != NULL) {
        ok = (d->normed_half = buffer_new(d, rows * d->hidden_stride, sizeof(uint16_t))) != NULL &&
             (d->attended_half = buffer_new(d, rows * d->attended_stride, sizeof(uint16_t))) != NULL &&
             (d->gate_half = buffer_new(d, rows * d->ffn_stride, sizeof(uint16_t))) != NULL &&
             (d->last_half = buffer_new(d, segments * d->hidden_stride, sizeof(uint16_t))) != NULL;
    }
    if (!ok) return kvf_fail(err, KVF_ENOMEM, "work buffers of %d rows for %s: no memory", d->max_rows, d->model->name);
    return 0;
}

int decoder_new(const struct model *model, const struct cpu_ops *ops, int threads, int max_rows, int max_segments,
                struct decoder **out, struct kvf_err *err)
{
    const struct model_config *config = &model->config;
    if (config->head_dim % 4 != 0) {
        return kvf_fail(err, KVF_EUNSUPPORTED, "%s: head_dim: expected a multiple of 4, got %d", model->name,
                        config->head_dim);
    }
    struct decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL) return kvf_fail(err, KVF_ENOMEM, "loading %s: no memory", model->name);
    decoder->model = model;
    decoder->ops = ops;
    decoder->max_rows = max_rows;
    decoder->max_segments = max_segments;
    decoder->group = config->heads / config->kv_heads;
    decoder->query_width = config->heads * config->head_dim;
    decoder->key_width = config->kv_heads * config->head_dim;
    int rc = pool_new(threads, &decoder->pool, err);
    if (rc == 0) rc = weights_load(decoder, err);
    if (rc == 0) rc = buffers_new(decoder, err);
    if (rc != 0) decoder_destroy(&decoder);
    *out = decoder;
    return rc;
}

void decoder_destroy(struct decoder **decoder)
{
    struct decoder *d = *decoder;
    if (d == NULL) return;
    int threads = d->pool == NULL ? 0 : pool_threads(d->pool);
    pool_destroy(&d->pool);
    for (int l = 0; d->layer != NULL && l < d->model->config.layers; l++) {
        struct decoder_layer *layer = &d->layer[l];
        free(layer->attn_norm);
        free(layer->mlp_norm);
        panels_free(&layer->qkv);
        panels_free(&layer->o);
        panels_free(&layer->gate);
        panels_free(&layer->up);
        panels_free(&layer->down);
    }
    panels_free(&d->lm_head);
    if (d->weights != NULL) munmap(d->weights, d->weights_mapped);
    for (int t = 0; d->scratch != NULL && t < threads; t++) free(d->scratch[t]);
    void *buffers[] = {d->layer,     d->final_norm,  d->inv_freq,      d->x,        d->normed, d->qkv,
                       d->query,     d->key,         d->value,         d->attended, d->gate,   d->up,
                       d->last,      d->logits,      d->row,           d->cosines,  d->sines,  d->scratch,
                       d->gate_half, d->normed_half, d->attended_half, d->last_half};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]);
    free(d);
    *decoder = NULL;
}

/* ---- work items ---- */

static int last_row_of_take(const struct decoder *d, int item)
{
    int end = (item + 1) * ROWS_A_TAKE;
    return end < d->rows ? end : d->rows;
}

/* Row `r` of an activation, rounded too where the set wants that. */
static void row_round(const struct decoder *d, const float *in, int n, uint16_t *half, int64_t offset)
{
    if (half != NULL) d->ops->to_half(in + offset, n, half + offset);
}

/* Embedding and the angles of the position. Frequencies and positions are multiplied in float, as the reference does.
 */
static void embed_rows(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    const struct model_config *config = &d->model->config;
    const struct weight *embed = &d->model->embed;
    int half = config->head_dim / 2;
    (void)thread;
    for (int r = item * ROWS_A_TAKE; r < last_row_of_take(d, item); r++) {
        const struct row *row = &d->row[r];
        int64_t first = (int64_t)row->segment->tokens[row->index] * config->hidden;
        float *x = d->x + (int64_t)r * d->hidden_stride;
        if (embed->dtype == DTYPE_BF16) {
            for (int i = 0; i < config->hidden; i++) {
                uint16_t bits;
                memcpy(&bits, (const char *)embed->data + 2 * (first + i), sizeof bits);
                uint32_t wide = (uint32_t)bits << 16;
                memcpy(x + i, &wide, sizeof wide);
            }
        } else {
            for (int i = 0; i < config->hidden; i++) x[i] = weight_at(embed, first + i);
        }
        float position = (float)(row->segment->first_position + row->index);
        for (int i = 0; i < half; i++) {
            double sine, cosine;
            sincos((double)(position * d->inv_freq[i]), &sine, &cosine);
            d->cosines[r * half + i] = (float)cosine;
            d->sines[r * half + i] = (float)sine;
        }
    }
}

static void norm_rows(struct decoder *d, const float *weight, int item)
{
    int hidden = d->model->config.hidden;
    for (int r = item * ROWS_A_TAKE; r < last_row_of_take(d, item); r++) {
        int64_t offset = (int64_t)r * d->hidden_stride;
        d->ops->rmsnorm(d->x + offset, weight, d->model->config.norm_eps, hidden, d->normed + offset);
        row_round(d, d->normed, hidden, d->normed_half, offset);
    }
}

static void attn_norm_rows(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    (void)thread;
    norm_rows(d, d->now->attn_norm, item);
}

static void mlp_norm_rows(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    (void)thread;
    norm_rows(d, d->now->mlp_norm, item);
}

static void rope_rows(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    const struct model_config *config = &d->model->config;
    int dim = config->head_dim;
    (void)thread;
    for (int r = item * ROWS_A_TAKE; r < last_row_of_take(d, item); r++) {
        const float *qkv = d->qkv + (int64_t)r * d->qkv_stride;
        const float *cosines = d->cosines + r * (dim / 2), *sines = d->sines + r * (dim / 2);
        for (int h = 0; h < config->heads; h++) {
            d->ops->rope(qkv + h * dim, cosines, sines, dim, d->query + (int64_t)r * d->query_width + h * dim);
        }
        qkv += d->query_width;
        for (int h = 0; h < config->kv_heads; h++) {
            d->ops->rope(qkv + h * dim, cosines, sines, dim, d->key + (int64_t)r * d->key_width + h * dim);
        }
        memcpy(d->value + (int64_t)r * d->key_width, qkv + d->key_width, (size_t)d->key_width * sizeof(float));
    }
}

/* Unit u is kv head u % kv_heads of row u / kv_heads: the keys of the whole chunk are in the cache, a row sees those up
 * to its own. */
static struct kv_view unit_view(const struct decoder *d, int unit)
{
    int kv_heads = d->model->config.kv_heads;
    return kv_head(d->kv, d->row[unit / kv_heads].segment->seq, d->now_index, unit % kv_heads);
}

static void attend_unit(struct decoder *d, int unit, struct kv_view view, struct kv_view upcoming, int thread)
{
    int kv_heads = d->model->config.kv_heads, dim = d->model->config.head_dim;
    int r = unit / kv_heads, first = unit % kv_heads * d->group * dim;
    const struct row *row = &d->row[r];
    struct attention attention = {
        .query = d->query + (int64_t)r * d->query_width + first,
        .kind = view.half ? PAGE_BF16 : PAGE_F32,
        .pages = view.pages,
        .upcoming = upcoming.pages,
        .upcoming_pages = (upcoming.entries + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES,
        .entries = view.entries - (row->segment->count - 1 - row->index),
        .group = d->group,
        .head_dim = dim,
        .scale = 1.0f / sqrtf((float)dim),
        .scratch = d->scratch[thread],
        .out = d->attended + (int64_t)r * d->attended_stride + first,
        .mass = view.mass,
    };
    d->ops->attend(&attention);
    row_round(d, d->attended, d->group * dim, d->attended_half, (int64_t)r * d->attended_stride + first);
}

/* A run of units by one thread, so that each call knows what the next one reads. */
static void attend_piece(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    int64_t units = (int64_t)d->rows * d->model->config.kv_heads;
    int unit = (int)(units * item / d->attend_pieces), last = (int)(units * (item + 1) / d->attend_pieces);
    struct kv_view view = unit_view(d, unit);
    for (; unit < last; unit++) {
        struct kv_view upcoming = unit + 1 < last ? unit_view(d, unit + 1) : (struct kv_view){.entries = 0};
        attend_unit(d, unit, view, upcoming, thread);
        view = upcoming;
    }
}

/* One kv head of one segment, its rows in order of position: a sum of attention mass must not depend on who comes
 * first. */
static void attend_ordered(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    int kv_heads = d->model->config.kv_heads, head = item % kv_heads;
    const struct segment *segment = &d->segments[item / kv_heads];
    struct kv_view view = kv_head(d->kv, segment->seq, d->now_index, head);
    for (int r = segment->first_row; r < segment->first_row + segment->count; r++) {
        attend_unit(d, r * kv_heads + head, view, view, thread);
    }
}

/* Whether rows of one segment add to the same attention mass. */
static int attend_is_ordered(const struct decoder *d, int segments)
{
    for (int s = 0; s < segments; s++) {
        if (d->segments[s].count > 1 && kv_head(d->kv, d->segments[s].seq, 0, 0).mass != NULL) return 1;
    }
    return 0;
}

static void attend_run(struct decoder *d, int segments)
{
    if (attend_is_ordered(d, segments)) {
        pool_run(d->pool, attend_ordered, d, segments * d->model->config.kv_heads);
        return;
    }
    int threads = pool_threads(d->pool), units = d->rows * d->model->config.kv_heads;
    d->attend_pieces = threads == 1 ? 1 : threads * ATTEND_PIECES_A_THREAD;
    if (d->attend_pieces > units) d->attend_pieces = units;
    pool_run(d->pool, attend_piece, d, d->attend_pieces);
}

/* ---- products ---- */

struct product {
    struct decoder *decoder;
    struct gemm gemm, second; /* second: the up projection beside gate, or no weight */
    int pieces;
};

static void product_piece(void *arg, int item, int thread)
{
    const struct product *p = arg;
    int panels = p->gemm.weight->count;
    int first = (int)((int64_t)panels * item / p->pieces), last = (int)((int64_t)panels * (item + 1) / p->pieces);
    (void)thread;
    p->decoder->ops->gemm(&p->gemm, first, last);
    if (p->second.weight == NULL) return;
    p->decoder->ops->gemm(&p->second, first, last);
    int column = first * PANEL_OUTPUTS, end = last * PANEL_OUTPUTS;
    if (end > p->gemm.weight->outputs) end = p->gemm.weight->outputs;
    for (int r = 0; r < p->gemm.rows; r++) {
        int64_t offset = r * p->gemm.out_stride + column;
        p->decoder->ops->silu_mul(p->gemm.out + offset, p->second.out + offset, end - column, p->gemm.out + offset);
        row_round(p->decoder, p->decoder->gate, end - column, p->decoder->gate_half, offset);
    }
}

static void product_run(struct product *p)
{
    int threads = pool_threads(p->decoder->pool), panels = p->gemm.weight->count;
    p->pieces = threads == 1 ? 1 : threads * PIECES_A_THREAD;
    if (p->pieces > panels) p->pieces = panels;
    pool_run(p->decoder->pool, product_piece, p, p->pieces);
}

static struct gemm gemm_of(const struct panels *weight, int rows, const float *in, const uint16_t *half, int in_stride,
                           float *out, int out_stride, int add)
{
    return (struct gemm){.weight = weight,
                         .in = in,
                         .in_half = half,
                         .in_stride = in_stride,
                         .rows = rows,
                         .out = out,
                         .out_stride = out_stride,
                         .add = add};
}

/* ---- the pass ---- */

/* Sequences share nothing here, so each is put by whoever comes first. */
static void put_segment(void *arg, int item, int thread)
{
    struct decoder *d = arg;
    const struct segment *segment = &d->segments[item];
    int64_t r = segment->first_row;
    (void)thread;
    kv_put(d->kv, segment->seq, d->now_index, segment->count, segment->first_position, d->key + r * d->key_width,
           d->value + r * d->key_width, d->query + r * d->query_width);
}

static void layer_run(struct decoder *d, int segments)
{
    const struct decoder_layer *layer = d->now;
    int rows = d->rows, takes = (rows + ROWS_A_TAKE - 1) / ROWS_A_TAKE;

    pool_run(d->pool, attn_norm_rows, d, takes);
    struct product product = {
        .decoder = d,
        .gemm = gemm_of(&layer->qkv, rows, d->normed, d->normed_half, d->hidden_stride, d->qkv, d->qkv_stride, 0)};
    product_run(&product);
    pool_run(d->pool, rope_rows, d, takes);
    pool_run(d->pool, put_segment, d, segments);
    const int64_t begin = clock_ns();
    attend_run(d, segments);
    d->attend_ns += clock_ns() - begin;
    product.gemm =
        gemm_of(&layer->o, rows, d->attended, d->attended_half, d->attended_stride, d->x, d->hidden_stride, 1);
    product_run(&product);

    pool_run(d->pool, mlp_norm_rows, d, takes);
    product.gemm = gemm_of(&layer->gate, rows, d->normed, d->normed_half, d->hidden_stride, d->gate, d->ffn_stride, 0);
    product.second = gemm_of(&layer->up, rows, d->normed, d->normed_half, d->hidden_stride, d->up, d->ffn_stride, 0);
    product_run(&product);
    product.second.weight = NULL;
    product.gemm = gemm_of(&layer->down, rows, d->gate, d->gate_half, d->ffn_stride, d->x, d->hidden_stride, 1);
    product_run(&product);
}

/* Final norm and logits of the last row of each segment that wants them. */
static void logits_run(struct decoder *d, int segments)
{
    const struct model_config *config = &d->model->config;
    int r = 0, wanted = 0;
    for (int s = 0; s < segments; s++) {
        struct segment *segment = &d->segments[s];
        r += segment->count;
        if (!segment->wants_logits) continue;
        int64_t offset = (int64_t)wanted * d->hidden_stride;
        d->ops->rmsnorm(d->x + (int64_t)(r - 1) * d->hidden_stride, d->final_norm, config->norm_eps, config->hidden,
                        d->last + offset);
        row_round(d, d->last, config->hidden, d->last_half, offset);
        segment->logits = d->logits + (int64_t)wanted * d->vocab_stride;
        wanted++;
    }
    if (wanted == 0) return;
    struct product product = {
        .decoder = d,
        .gemm = gemm_of(&d->lm_head, wanted, d->last, d->last_half, d->hidden_stride, d->logits, d->vocab_stride, 0)};
    product_run(&product);
}

static void hidden_copy(const struct decoder *d, float *hidden, int index)
{
    int width = d->model->config.hidden;
    memcpy(hidden + (int64_t)index * width, d->x + (int64_t)(d->rows - 1) * d->hidden_stride,
           (size_t)width * sizeof *hidden);
}

void decoder_forward(struct decoder *d, struct kv_pool *kv, struct segment *segments, int count, float *hidden)
{
    const struct model_config *config = &d->model->config;
    d->kv = kv;
    d->segments = segments;
    d->rows = 0;
    d->attend_ns = 0;
    for (int s = 0; s < count; s++) {
        segments[s].logits = NULL;
        segments[s].first_row = d->rows;
        for (int i = 0; i < segments[s].count; i++) d->row[d->rows++] = (struct row){&segments[s], i};
    }
    pool_run(d->pool, embed_rows, d, (d->rows + ROWS_A_TAKE - 1) / ROWS_A_TAKE);
    if (hidden != NULL) hidden_copy(d, hidden, 0);
    for (int l = 0; l < config->layers; l++) {
        d->now = &d->layer[l];
        d->now_index = l;
        layer_run(d, count);
        if (hidden != NULL) hidden_copy(d, hidden, l + 1);
    }
    logits_run(d, count);
    if (hidden != NULL) {
        d->ops->rmsnorm(d->x + (int64_t)(d->rows - 1) * d->hidden_stride, d->final_norm, config->norm_eps,
                        config->hidden, hidden + (int64_t)(config->layers + 1) * config->hidden);
    }
}

int64_t decoder_attend_ns(const struct decoder *decoder)
{
    return decoder->attend_ns;
}

struct pool *decoder_threads(const struct decoder *decoder)
{
    return decoder->pool;
}

const float *decoder_rope_frequency(const struct decoder *decoder)
{
    return decoder->inv_freq;
}

int64_t decoder_weights_bytes(const struct decoder *decoder)
{
    return decoder->weights_bytes;
}

int64_t decoder_workspace_bytes(const struct decoder *decoder)
{
    return decoder->workspace_bytes;
}
