/* avx512_shim.h: scalar stand-ins for the AVX-512 intrinsics that engine/cpu/ops_avx512bf16.c uses, so that its logic
 * is tested on machines without AVX-512. Vectors are GCC vector types; nothing here is meant to be fast. */
#ifndef KVF_AVX512_SHIM_H
#define KVF_AVX512_SHIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* 64-byte vectors by value, inlined everywhere */

typedef float __m512 __attribute__((vector_size(64)));
typedef int __m512i __attribute__((vector_size(64)));
typedef uint16_t __m512bh __attribute__((vector_size(64)));
typedef uint16_t __m256bh __attribute__((vector_size(32)));
typedef uint16_t __mmask16;

#define _CMP_LT_OQ 17
#define _CMP_GT_OQ 30

#define SHIM static inline __attribute__((always_inline, unused))

SHIM __m512 _mm512_set1_ps(float x)
{
    return (__m512){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

SHIM __m512 _mm512_setzero_ps(void)
{
    return _mm512_set1_ps(0.0f);
}

SHIM __m512i _mm512_set1_epi32(int x)
{
    return (__m512i){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

SHIM __m512 _mm512_loadu_ps(const float *from)
{
    __m512 v;
    memcpy(&v, from, sizeof v);
    return v;
}

SHIM __m512i _mm512_loadu_si512(const void *from)
{
    __m512i v;
    memcpy(&v, from, sizeof v);
    return v;
}

SHIM void _mm512_storeu_ps(float *to, __m512 v)
{
    memcpy(to, &v, sizeof v);
}

SHIM __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float *from)
{
    __m512 v = _mm512_setzero_ps();
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) v[i] = from[i];
    }
    return v;
}

SHIM void _mm512_mask_storeu_ps(float *to, __mmask16 mask, __m512 v)
{
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) to[i] = v[i];
    }
}

SHIM __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 unset, __m512 set)
{
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) unset[i] = set[i];
    }
    return unset;
}

SHIM __m512 _mm512_add_ps(__m512 a, __m512 b)
{
    return a + b;
}

SHIM __m512 _mm512_sub_ps(__m512 a, __m512 b)
{
    return a - b;
}

SHIM __m512 _mm512_mul_ps(__m512 a, __m512 b)
{
    return a * b;
}

SHIM __m512 _mm512_div_ps(__m512 a, __m512 b)
{
    return a / b;
}

SHIM __m512 _mm512_max_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}

SHIM __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    for (int i = 0; i < 16; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

SHIM __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c)
{
    return _mm512_fmadd_ps(-a, b, c);
}

/* The second operand where either is NaN, as the instruction. */
SHIM __m512 _mm512_min_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}

SHIM __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(how == _CMP_GT_OQ ? a[i] > b[i] : a[i] < b[i]) << i;
    return (__mmask16)mask;
}

SHIM __m512 _mm512_roundscale_ps(__m512 v, int nearest)
{
    (void)nearest; /* as above */
    for (int i = 0; i < 16; i++) v[i] = nearbyintf(v[i]);
    return v;
}

SHIM __m512 _mm512_maskz_scalef_ps(__mmask16 mask, __m512 v, __m512 power)
{
    for (int i = 0; i < 16; i++) v[i] = mask >> i & 1 ? v[i] * exp2f(power[i]) : 0.0f;
    return v;
}

SHIM float _mm512_reduce_max_ps(__m512 v)
{
    for (int i = 1; i < 16; i++) v[0] = v[i] > v[0] ? v[i] : v[0];
    return v[0];
}

SHIM float _mm512_reduce_add_ps(__m512 v)
{
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    }
    return v[0];
}

SHIM float shim_widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SHIM __m512 _mm512_cvtpbh_ps(__m256bh half)
{
    __m512 wide;
    for (int i = 0; i < 16; i++) wide[i] = shim_widen(half[i]);
    return wide;
}

SHIM __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    for (int i = 0; i < 16; i++) {
        sum[i] = fmaf(shim_widen(a[2 * i + 1]), shim_widen(b[2 * i + 1]), sum[i]);
        sum[i] = fmaf(shim_widen(a[2 * i]), shim_widen(b[2 * i]), sum[i]);
    }
    return sum;
}

SHIM __m512i _mm512_cvtps_epi32(__m512 v)
{
    __m512i to;
    for (int i = 0; i < 16; i++) to[i] = fabsf(v[i]) < 0x1p31f ? (int)nearbyintf(v[i]) : INT32_MIN;
    return to;
}

SHIM __m512 _mm512_cvtepi32_ps(__m512i v)
{
    return __builtin_convertvector(v, __m512);
}

SHIM __m512 _mm512_sqrt_ps(__m512 v)
{
    for (int i = 0; i < 16; i++) v[i] = sqrtf(v[i]);
    return v;
}

SHIM __m512i _mm512_add_epi32(__m512i a, __m512i b)
{
    return a + b;
}

SHIM void _mm512_storeu_si512(void *to, __m512i v)
{
    memcpy(to, &v, sizeof v);
}

SHIM __m512i _mm512_sub_epi32(__m512i a, __m512i b)
{
    return a - b;
}

SHIM __m512i _mm512_or_si512(__m512i a, __m512i b)
{
    return a | b;
}

SHIM __m512i _mm512_xor_si512(__m512i a, __m512i b)
{
    return a ^ b;
}

SHIM __m512i _mm512_and_si512(__m512i a, __m512i b)
{
    return a & b;
}

SHIM __m512i _mm512_andnot_si512(__m512i a, __m512i b)
{
    return ~a & b;
}

SHIM __m512i _mm512_slli_epi32(__m512i v, unsigned bits)
{
    for (int i = 0; i < 16; i++) v[i] = (int)((unsigned)v[i] << bits);
    return v;
}

SHIM __m512i _mm512_sllv_epi32(__m512i v, __m512i bits)
{
    for (int i = 0; i < 16; i++) v[i] = (unsigned)bits[i] > 31 ? 0 : (int)((unsigned)v[i] << bits[i]);
    return v;
}

SHIM __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b)
{
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(a[i] > b[i]) << i;
    return (__mmask16)mask;
}

SHIM __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b)
{
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)((a[i] & b[i]) != 0) << i;
    return (__mmask16)mask;
}

SHIM __m512i _mm512_maskz_compress_epi32(__mmask16 mask, __m512i v)
{
    __m512i to = _mm512_set1_epi32(0);
    for (int i = 0, at = 0; i < 16; i++) {
        if (mask >> i & 1) to[at++] = v[i];
    }
    return to;
}

SHIM __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    for (int i = 0; i < 16; i++) {
        for (int byte = 0; byte < 32; byte += 8) sum[i] += (int)(uint8_t)(a[i] >> byte) * (int8_t)(b[i] >> byte);
    }
    return sum;
}

#endif
