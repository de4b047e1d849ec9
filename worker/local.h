/* local.h: what `kvfleet generate` and `kvfleet calibrate` do on this machine, without a fleet.
 *
 * Each call opens an engine, uses it from the calling thread and closes it. Nothing is printed except to the streams
 * that the caller gives. Options are not kept; results belong to the caller.
 */
#ifndef KVF_LOCAL_H
#define KVF_LOCAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "alloc/err.h"
#include "alloc/policy.h"
#include "alloc/profile.h"
#include "engine/engine.h"
#include "worker/kv_map.h"

/* ---- wave profiles ---- */

#define LOCAL_PROFILE_NAME "wave-profile.json" /* where calibrate puts it, in the model's folder */

/* Reads and checks a profile. layers, kv_heads: of the model, 0 when not known. *text (optional) gets the malloc'd
 * document as it is sent to workers. KVF_ENOTFOUND (the line says how to make one), KVF_ECORRUPT, KVF_EINVAL (another
 * model's: both hashes). */
KVF_MUSTCHECK int local_load_profile(const char *path, const char *model_hash, int layers, int kv_heads,
                                     struct wave_profile *out, char **text, struct kvf_err *err);
/* FOLDER/wave-profile.json, malloc'd; NULL without memory. */
char *local_profile_path(const char *model_folder);

/* ---- one prompt ---- */

struct local_prompt {
    const char *model_folder;
    const char *kernels;       /* NULL: "auto" */
    const char *kv_type;       /* NULL: "f32" */
    int threads;               /* 0: every core */
    int64_t kv_bytes;          /* 0: one full context */
    const char *template_name; /* NULL: "auto"; "raw" or a chat family */
    const char *prompt;        /* the user's message, or with "raw" the text itself */
    struct policy policy;
    int budget_tokens, interval_tokens;
    const char *profile_path; /* NULL: the model's own, where the policy needs one */
    struct sampling sampling;
    uint64_t seed;
    int max_new_tokens;                /* 0: what the context leaves */
    bool record_entries;               /* fill the answer's map */
    FILE *stream;                      /* gets the text as it is decoded, flushed a token; NULL: nobody */
    const volatile sig_atomic_t *stop; /* nonzero ends it as cancelled; may be NULL */
};
struct local_answer {
    struct engine_info info; /* chat_family is NULL: see family */
    char family[64];         /* "" when the model names none */
    struct completion completion;
    char policy_name[POLICY_NAME_MAX];
    int budget_tokens, interval_tokens;             /* as asked */
    int64_t kv_full_mean_bytes, kv_full_peak_bytes; /* what full cache takes for this prompt and output, measured
                                                       like the completion's live bytes; mean -1: no decode step */
    struct kv_map map;                              /* without points unless record_entries */
};
KVF_MUSTCHECK int local_generate(const struct local_prompt *how, struct local_answer *out, struct kvf_err *err);
void local_answer_free(struct local_answer *answer);
/* The figures as aligned text, a figure a line; what was not measured is left out. */
void local_print_figures(const struct local_answer *answer, FILE *out);
/* Text and figures as one JSON object and a line end; what was not measured is null; kv_map where it was recorded.
 * What cannot be written stays an error of `out`. */
KVF_MUSTCHECK int local_print_json(const struct local_answer *answer, FILE *out, struct kvf_err *err);

/* ---- calibration ---- */

struct local_calibration {
    const char *model_folder;
    const char *kernels; /* NULL: "auto" */
    int threads;         /* 0: every core */
    const char *dataset_path;
    int probes;                /* the first so many problems */
    const char *template_name; /* NULL: "auto" */
    struct calibration how;
    const char *out_path; /* NULL: the model's own */
};
/* Usual settings: window 8, rho 0.93, from token 64 every 32, at most 1024 new tokens. */
struct calibration local_calibration_defaults(void);
/* Measures and writes the profile, as new_file.h does. written (optional): path that was written, malloc'd. */
KVF_MUSTCHECK int local_calibrate(const struct local_calibration *how, struct wave_profile *out, char **written,
                                  struct kvf_err *err);

#endif
