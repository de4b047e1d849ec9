/* filemap.c: see filemap.h. */
#include "engine/model/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Largest JSON file taken: tokenizers of 256,000 tokens are about 35 MB. */
#define JSON_MAX_BYTES (256LL << 20)

/* What is mapped, as a list that a signal handler may walk at any moment: entries are added at its head and used again,
 * never freed. Path and size change only while `data` is 0. */
struct filemap_place {
    _Atomic uintptr_t data; /* where the file is mapped; 0: the entry is free */
    size_t size;
    struct filemap_place *next;
    char path[PATH_MAX];
};
static _Atomic(struct filemap_place *) places;
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER; /* for who adds and removes */

/* NULL: no memory. */
static struct filemap_place *place_take(const char *path, const void *data, size_t size)
{
    pthread_mutex_lock(&places_lock);
    struct filemap_place *place = atomic_load(&places);
    while (place != NULL && atomic_load(&place->data) != 0) place = place->next;
    int is_new = place == NULL;
    if (is_new) place = calloc(1, sizeof *place);
    if (place != NULL) {
        snprintf(place->path, sizeof place->path, "%s", path);
        place->size = size;
        atomic_store(&place->data, (uintptr_t)data);
    }
    if (place != NULL && is_new) {
        place->next = atomic_load(&places);
        atomic_store(&places, place);
    }
    pthread_mutex_unlock(&places_lock);
    return place;
}

const char *filemap_path_at(const void *address)
{
    for (const struct filemap_place *place = atomic_load(&places); place != NULL; place = place->next) {
        uintptr_t data = atomic_load(&place->data);
        if (data != 0 && (uintptr_t)address - data < place->size) return place->path;
    }
    return NULL;
}

int filemap_open(const char *folder, const char *name, struct filemap *out, struct kvf_err *err)
{
    *out = (struct filemap){0};
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return kvf_fail(err, KVF_EINVAL, "%.200s...: path is longer than %d bytes", folder, PATH_MAX - 1);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        int missing = errno == ENOENT || errno == ENOTDIR;
        return kvf_fail(err, missing ? KVF_ENOTFOUND : KVF_EIO, "%s: %s", path, strerror(errno));
    }
    int rc = KVF_OK;
    struct stat st;
    if (fstat(fd, &st) < 0) {
        rc = kvf_fail(err, KVF_EIO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = kvf_fail(err, KVF_EIO, "%s: expected a regular file, got a %s", path,
                      S_ISDIR(st.st_mode)    ? "directory"
                      : S_ISFIFO(st.st_mode) ? "FIFO"
                                             : "device or socket");
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        struct filemap_place *place = data == MAP_FAILED ? NULL : place_take(path, data, (size_t)st.st_size);
        if (data == MAP_FAILED) {
            rc = kvf_fail(err, KVF_EIO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        } else if (place == NULL) {
            munmap(data, (size_t)st.st_size);
            rc = kvf_fail(err, KVF_ENOMEM, "%s: out of memory", path);
        } else {
            *out = (struct filemap){.data = data, .size = st.st_size, .place = place};
        }
    }
    close(fd);
    return rc;
}

void filemap_close(struct filemap *map)
{
    if (map->data != NULL) {
        atomic_store(&map->place->data, 0); /* first: the addresses may be another file's at once */
        munmap((void *)map->data, (size_t)map->size);
    }
    *map = (struct filemap){0};
}

int filemap_exists(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && lstat(path, &st) == 0;
}

int json_parse(const char *where, const void *text, int64_t size, json_t **out, struct kvf_err *err)
{
    *out = NULL;
    if (size == 0) return kvf_fail(err, KVF_ECORRUPT, "%s: file is empty, expected a JSON object", where);
    if (size > JSON_MAX_BYTES)
        return kvf_fail(err, KVF_EUNSUPPORTED, "%s: %lld bytes of JSON, more than %lld", where, (long long)size,
                        JSON_MAX_BYTES);
    json_error_t at;
    json_t *value = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &at);
    if (value == NULL) {
        const char *what = "not JSON";
        switch (json_error_code(&at)) {
        case json_error_stack_overflow:
            what = "nested too deeply";
            break;
        case json_error_invalid_utf8:
            what = "not UTF-8";
            break;
        case json_error_premature_end_of_input:
            what = "JSON ends too early";
            break;
        case json_error_duplicate_key:
            what = "a key appears twice";
            break;
        case json_error_null_character:
            return kvf_fail(err, KVF_ECORRUPT, "%s: a string holds \\u0000, a NUL, at byte %d (line %d)", where,
                            at.position, at.line);
        case json_error_out_of_memory:
            return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", where);
        default:
            break;
        }
        return kvf_fail(err, KVF_ECORRUPT, "%s: %s at byte %d (line %d): %s", where, what, at.position, at.line,
                        at.text);
    }
    if (!json_is_object(value)) {
        int rc = kvf_fail(err, KVF_ECORRUPT, "%s: expected a JSON object, got %s", where, json_kind(value));
        json_decref(value);
        return rc;
    }
    *out = value;
    return KVF_OK;
}

int json_read(const char *folder, const char *name, json_t **out, struct kvf_err *err)
{
    *out = NULL;
    struct filemap map;
    int rc = filemap_open(folder, name, &map, err);
    if (rc != KVF_OK) return rc;
    char where[PATH_MAX];
    snprintf(where, sizeof where, "%s/%s", folder, name);
    rc = json_parse(where, map.data, map.size, out, err);
    filemap_close(&map);
    return rc;
}

const char *json_kind(const json_t *value)
{
    if (value == NULL) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}
