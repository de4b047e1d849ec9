/* ops_avx2.h: AVX2 operations that the AVX-512 set takes as they are. See ops.h for what they compute. */
#ifndef KVF_CPU_OPS_AVX2_H
#define KVF_CPU_OPS_AVX2_H

#include "engine/cpu/ops.h"

void avx2_gemm(const struct gemm *gemm, int first_panel, int last_panel); /* not PANEL_BF16_PAIRS */
void avx2_rmsnorm(const float *in, const float *weight, float eps, int n, float *out);
void avx2_rope(const float *in, const float *cosines, const float *sines, int head_dim, float *out);
void avx2_silu_mul(const float *gate, const float *up, int n, float *out);
void avx2_exp_rows(const float *in, int n, float *out); /* in may be out */
/* mass[i] += weights[i] * share, i < padded, a multiple of 16 */
void avx2_mass(const float *weights, int padded, float share, float *mass);
void avx2_dot_rows(const float *a, const float *rows, int n, int d, float *out);

#endif
