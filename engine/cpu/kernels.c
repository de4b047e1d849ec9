/* kernels.c: which kernel sets this machine can run. */
#include <string.h>
#include "engine/cpu/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The registers that the operating system saves on a context switch: bit 1 xmm, 2 ymm, 5-7 zmm and masks. */
static uint64_t saved_registers(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has_avx2(void)
{
    unsigned a, b, c, d;
    if ((saved_registers() & 0x6) != 0x6) return 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_FMA) == 0 || (c & bit_AVX) == 0) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) != 0;
}

static int has_avx512bf16(void)
{
    const unsigned needed = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    unsigned a, b, c, d;
    if (!has_avx2() || (saved_registers() & 0xe6) != 0xe6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & needed) != needed || (c & bit_AVX512VNNI) == 0) return 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) != 0;
}
#endif

const struct cpu_ops *cpu_ops_at(int index)
{
    const struct cpu_ops *sets[3];
    int count = 0;
#if defined(__x86_64__)
    if (has_avx512bf16()) sets[count++] = &cpu_ops_avx512bf16;
    if (has_avx2()) sets[count++] = &cpu_ops_avx2;
#endif
    sets[count++] = &cpu_ops_plain;
    return index >= 0 && index < count ? sets[index] : NULL;
}

const struct cpu_ops *cpu_ops_find(const char *name)
{
    if (strcmp(name, "auto") == 0) return cpu_ops_at(0);
    for (int i = 0; cpu_ops_at(i) != NULL; i++) {
        if (strcmp(cpu_ops_at(i)->name, name) == 0) return cpu_ops_at(i);
    }
    return NULL;
}
