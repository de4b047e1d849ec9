/* wide.h: plain C for wide vectors. Internal to alloc/ and engine/. */
#ifndef KVF_WIDE_H
#define KVF_WIDE_H

/* Before a function: it is compiled for several vector widths, and the program takes the machine's widest when it
 * starts. Sums keep the order that the source gives them (-ffp-contract=off), so all widths give the same floats.
 * ThreadSanitizer is not up yet when that choice is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define KVF_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVF_WIDE
#endif

#endif
