/* new_file.h: a file that appears under its name only when it is complete: written to a temporary one in the same
 * folder, synced, renamed. No reader ever sees a part of it, and what was there stays until then. One thread. */
#ifndef KVF_NEW_FILE_H
#define KVF_NEW_FILE_H

#include <stdio.h>
#include "alloc/err.h"

struct new_file {
    char *path, *temporary;
    FILE *stream; /* write here */
};

/* what: "wave profile", for the error lines. KVF_EIO when the folder takes no file or the path is a folder. */
KVF_MUSTCHECK int new_file_begin(const char *path, const char *what, struct new_file *out, struct kvf_err *err);
/* Whether new_file_begin would do: for work that takes long and is written at its end. Leaves nothing behind. */
KVF_MUSTCHECK int new_file_check(const char *path, const char *what, struct kvf_err *err);
/* Closes it in any case; KVF_EIO when something could not be written, and nothing stays behind. */
KVF_MUSTCHECK int new_file_commit(struct new_file *file, const char *what, struct kvf_err *err);
/* Removes what was written; for a file that was not begun or is committed it does nothing. */
void new_file_drop(struct new_file *file);

#endif
