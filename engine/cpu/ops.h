/* ops.h: the operations of a forward pass on the CPU, one table of function pointers for each kernel set.
 *
 * Sets: plain C, AVX2 + FMA, AVX-512 BF16. A set is chosen once, at run time; everything else in engine/ is portable C.
 * Batch-invariance rests on one promise that every function here keeps: the value of an output depends only on the
 * inputs of that output, in one fixed order of summation, and never on how many rows or panels the call covers.
 * No function allocates, locks or fails. Pointers need no alignment unless said.
 */
#ifndef KVF_CPU_OPS_H
#define KVF_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>
#include "alloc/compact.h"

#define PANEL_OUTPUTS    16
#define CPU_PAGE_ENTRIES 16 /* = KV_PAGE_ENTRIES, asserted in decoder.c */

/* A weight matrix [outputs][inputs] cut in panels of 16 outputs; one panel streams through the inner loop in order. */
enum panel_kind {
    PANEL_F32,        /* float [panel][inputs][16] */
    PANEL_BF16,       /* uint16 [panel][inputs][8][2]: output j, then output j + 8, so that a shift and a mask widen */
    PANEL_BF16_PAIRS, /* uint16 [panel][inputs / 2 rounded up][16][2]: two inputs side by side, as vdpbf16ps eats them
                       */
};
struct panels {
    enum panel_kind kind;
    int outputs, inputs;
    int count;   /* panels: outputs / 16 rounded up; missing outputs are zero */
    void *data;  /* 64-byte aligned; the decoder's, all matrices in one piece */
    float *bias; /* [count * 16] or NULL */
    int64_t bytes;
};

struct gemm {
    const struct panels *weight;
    const float *in;         /* [rows][in_stride] */
    const uint16_t *in_half; /* the same rounded to bf16, zero-padded to an even count; read for PANEL_BF16_PAIRS */
    int64_t in_stride;       /* of either, in elements */
    int rows;
    float *out; /* [rows][out_stride] */
    int64_t out_stride;
    int add; /* out += instead of out = */
};

/* A page of the cache: key[head_dim][16], then value[16][head_dim]. */
struct attention {
    const float *query; /* [group][head_dim] */
    enum page_kind kind;
    const void *const *pages;    /* [entries / 16 rounded up] */
    const void *const *upcoming; /* [upcoming_pages] pages that the next call reads, to fetch ahead; may be NULL */
    int upcoming_pages;
    int entries;         /* >= 1; a row of a prefill chunk gives the entries up to its own */
    int group, head_dim; /* head_dim a multiple of 4 */
    float scale;
    float *scratch; /* [group][entries rounded up to 16], 64-byte aligned */
    float *out;     /* [group][head_dim] */
    float *mass;    /* [entries rounded up to 16]; mass[i] += mean over the group of the probability of entry i, query
                     * heads in order; what lies past `entries` keeps its value. NULL: nobody asks */
};

/* What one query head adds to `mass`: its weights (exp of logit minus highest) times this. */
static inline float attention_mass_share(const struct attention *a, float total)
{
    return 1.0f / (total * (float)a->group);
}

/* Pages lie anywhere, so that no prefetcher of the hardware follows them: while one page is used, the one about this
 * far on is fetched, in the list of this head and then in that of the next: half of a first-level cache. */
#define ATTENTION_AHEAD_BYTES (16 * 1024)

static inline int page_element_bytes(enum page_kind kind)
{
    return kind == PAGE_F32 ? 4 : 2;
}

/* How many pages on, and that page of a list at `page`; the page itself where nothing lies that far on. */
static inline int attention_ahead_pages(const struct attention *a)
{
    int pages = ATTENTION_AHEAD_BYTES / (2 * CPU_PAGE_ENTRIES * a->head_dim * page_element_bytes(a->kind));
    return pages < 1 ? 1 : pages;
}

static inline const char *attention_ahead(const struct attention *a, int page, int ahead)
{
    int pages = (a->entries + CPU_PAGE_ENTRIES - 1) / CPU_PAGE_ENTRIES, to = page + ahead;
    if (to < pages) return (const char *)a->pages[to];
    /* Where the whole of this list is nearer than `ahead`, the next one is fetched page for page. */
    to = pages < ahead ? page : to - pages;
    return (const char *)(to < a->upcoming_pages ? a->upcoming[to] : a->pages[page]);
}

struct cpu_ops {
    const char *name;
    enum panel_kind bf16_kind; /* how this set wants bf16 weights */

    /* Panels first_panel...last_panel - 1 of the product, bias added. */
    void (*gemm)(const struct gemm *gemm, int first_panel, int last_panel);
    void (*attend)(const struct attention *attention);
    /* out = in / sqrt(mean(in^2) + eps) * weight */
    void (*rmsnorm)(const float *in, const float *weight, float eps, int n, float *out);
    /* One head, halves rotated: out[i] = in[i] cos[i] - in[i + d/2] sin[i]; out[i + d/2] = in[i + d/2] cos[i] + in[i]
     * sin[i] */
    void (*rope)(const float *in, const float *cosines, const float *sines, int head_dim, float *out);
    /* out = gate / (1 + exp(-gate)) * up */
    void (*silu_mul)(const float *gate, const float *up, int n, float *out);
    /* What compaction borrows; where a member is NULL it takes its own plain C. */
    struct compact_kernels compact;
    /* Round to nearest even bf16; NULL where the set has no use for it. */
    void (*to_half)(const float *in, int n, uint16_t *out);
};

extern const struct cpu_ops cpu_ops_plain;
#if defined(__x86_64__)
extern const struct cpu_ops cpu_ops_avx2;
extern const struct cpu_ops cpu_ops_avx512bf16;
#endif

/* Sets that this machine and operating system can run, best first; NULL past the end. */
const struct cpu_ops *cpu_ops_at(int index);
/* "auto" or a name; NULL when there is none or this machine cannot run it. */
const struct cpu_ops *cpu_ops_find(const char *name);

#endif
