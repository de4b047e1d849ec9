/* new_file.c: see new_file.h. */
#include "worker/new_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int new_file_begin(const char *path, const char *what, struct new_file *out, struct kvf_err *err)
{
    struct stat there;
    memset(out, 0, sizeof *out);
    if (stat(path, &there) == 0 && S_ISDIR(there.st_mode))
        return kvf_fail(err, KVF_EIO, "%s: cannot write %s: it is a folder", path, what);
    out->path = strdup(path);
    out->temporary = malloc(strlen(path) + sizeof ".XXXXXX");
    if (out->path == NULL || out->temporary == NULL) {
        free(out->path);
        free(out->temporary);
        memset(out, 0, sizeof *out);
        return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", path);
    }
    sprintf(out->temporary, "%s.XXXXXX", path);
    int file = mkstemp(out->temporary), why = errno;
    if (file >= 0 && (out->stream = fdopen(file, "w")) != NULL) return 0;
    if (file >= 0) {
        why = errno;
        close(file);
        unlink(out->temporary);
    }
    new_file_drop(out);
    return kvf_fail(err, KVF_EIO, "%s: cannot write %s: %s", path, what, strerror(why));
}

int new_file_check(const char *path, const char *what, struct kvf_err *err)
{
    struct new_file file;
    int rc = new_file_begin(path, what, &file, err);
    if (rc == 0) new_file_drop(&file);
    return rc;
}

void new_file_drop(struct new_file *file)
{
    if (file->stream != NULL) {
        fclose(file->stream);
        unlink(file->temporary);
    }
    free(file->path);
    free(file->temporary);
    memset(file, 0, sizeof *file);
}

int new_file_commit(struct new_file *file, const char *what, struct kvf_err *err)
{
    errno = 0;
    bool written = fflush(file->stream) == 0 && !ferror(file->stream) && fchmod(fileno(file->stream), 0644) == 0 &&
                   fsync(fileno(file->stream)) == 0 && rename(file->temporary, file->path) == 0;
    int rc = 0;
    if (!written)
        rc = kvf_fail(err, KVF_EIO, "%s: cannot write %s: %s", file->path, what,
                      errno == 0 ? "the file took only a part" : strerror(errno));
    else {
        fclose(file->stream);
        file->stream = NULL;
    }
    new_file_drop(file);
    return rc;
}
