/* progress.h: how far a job is, and how that looks: one line for a pipe, a frame of bars for a terminal. Pure. */
#ifndef KVF_PROGRESS_H
#define KVF_PROGRESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "alloc/err.h"

struct progress_cell {
    char label[192];
    int64_t total, done, errors;
};
/* From the view `progress`; a figure that the coordinator does not have yet is NaN. */
struct progress {
    int64_t job_id, total, done, errors, tokens, workers;
    int64_t after_job; /* its workers do that one first; 0: none */
    char state[32];
    double samples_per_s, tokens_per_s, eta_s, elapsed_s;
    struct progress_cell *cells; /* owned */
    int n_cells;
};
KVF_MUSTCHECK int progress_parse(const json_t *row, struct progress *out, struct kvf_err *err);
void progress_free(struct progress *progress);

bool state_ended(const char *state); /* of a job: done, done_with_errors or cancelled */
bool progress_ended(const struct progress *progress);
int progress_percent(const struct progress *progress); /* 0...100, 100 only when all is done */

/* "job 7: 460/1,088 samples (42 %), 3.2 samples/s, 5,120 tok/s, ETA 3:20, 2 workers, 1 error" without a newline. */
void progress_line(const struct progress *progress, char *out, size_t cap);

struct frame_style {
    int width, height; /* of the terminal */
    bool unicode, color;
};
/* Writes the frame, each line with a newline and none wider than the terminal: a bar per cell where they fit the
 * height, else one bar with the number of finished cells. Returns the number of lines. */
int progress_frame(const struct progress *progress, const char *title, const struct frame_style *style, FILE *out);

#endif
