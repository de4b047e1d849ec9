/* weightset.c: see weightset.h. */
#include "engine/model/weightset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME  "model.safetensors.index.json"

static int name_compare(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int name_find(const struct weight_names *names, const char *name)
{
    for (int low = 0, high = names->count; low < high;) {
        int mid = low + (high - low) / 2;
        int order = strcmp(name, names->name[mid]);
        if (order == 0) return mid;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

static int index_read(const char *folder, struct weight_names *out, struct kvf_err *err)
{
    json_t *index = NULL;
    int rc = json_read(folder, INDEX_NAME, &index, err);
    if (rc != KVF_OK) return rc;
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        rc = kvf_fail(err, KVF_ECORRUPT, "%s/" INDEX_NAME ": weight_map: expected an object with tensors, got %s",
                      folder, json_kind(map));
        json_decref(index);
        return rc;
    }
    out->weight_map = json_incref(map);
    json_decref(index);
    size_t entries = json_object_size(map);
    out->name = calloc(entries, sizeof *out->name);
    if (out->name == NULL)
        return kvf_fail(err, KVF_ENOMEM, "%s/" INDEX_NAME ": out of memory for %zu names", folder, entries);
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL)
            return kvf_fail(err, KVF_ECORRUPT, "%s/" INDEX_NAME ": weight_map of %s: expected a file name, got %s",
                            folder, tensor, json_kind(value));
        if (strchr(name, '/') != NULL || strcmp(name, "..") == 0 || strcmp(name, ".") == 0 || name[0] == '\0')
            return kvf_fail(err, KVF_ECORRUPT,
                            "%s/" INDEX_NAME ": weight_map of %s: shard name \"%s\" leaves the folder", folder, tensor,
                            name);
        out->name[out->count++] = (char *)name;
    }
    qsort(out->name, (size_t)out->count, sizeof *out->name, name_compare);
    int kept = 0;
    for (int i = 0; i < out->count; i++)
        if (kept == 0 || strcmp(out->name[kept - 1], out->name[i]) != 0) out->name[kept++] = out->name[i];
    out->count = kept;
    return KVF_OK;
}

/* Why there are no weights: mostly because the path is a typo. */
static int weights_missing(const char *folder, struct kvf_err *err)
{
    struct stat there;
    if (stat(folder, &there) != 0)
        return kvf_fail(err, KVF_ENOTFOUND, "model folder \"%s\": %s", folder, strerror(errno));
    if (!S_ISDIR(there.st_mode)) return kvf_fail(err, KVF_ENOTFOUND, "%s: expected a model folder, got a file", folder);
    return kvf_fail(err, KVF_ENOTFOUND, "%s: no weights: neither " SINGLE_NAME " nor " INDEX_NAME " is there", folder);
}

int weight_names_read(const char *folder, struct weight_names *out, struct kvf_err *err)
{
    *out = (struct weight_names){0};
    int rc = KVF_OK;
    if (filemap_exists(folder, SINGLE_NAME)) {
        static const char single[] = SINGLE_NAME;
        out->name = calloc(1, sizeof *out->name);
        if (out->name == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", folder);
        out->name[out->count++] = (char *)single;
    } else if (filemap_exists(folder, INDEX_NAME)) {
        rc = index_read(folder, out, err);
    } else {
        rc = weights_missing(folder, err);
    }
    if (rc != KVF_OK) weight_names_free(out);
    return rc;
}

void weight_names_free(struct weight_names *names)
{
    free(names->name);
    json_decref(names->weight_map);
    *names = (struct weight_names){0};
}

static int files_open(const char *folder, struct weightset *set, struct kvf_err *err)
{
    set->file = calloc((size_t)set->names.count, sizeof *set->file);
    if (set->file == NULL)
        return kvf_fail(err, KVF_ENOMEM, "%s: out of memory for %d shards", folder, set->names.count);
    for (int i = 0; i < set->names.count; i++) {
        int rc = safetensors_open(folder, set->names.name[i], &set->file[i], err);
        if (rc != KVF_OK) return rc;
    }
    const char *name;
    json_t *value;
    json_object_foreach(set->names.weight_map, name, value)
    {
        const char *file_name = NULL;
        if (weightset_find(set, name, &file_name) == NULL)
            return kvf_fail(err, KVF_ECORRUPT, "%s/" INDEX_NAME ": %s is not in %s, the shard that the index names",
                            folder, name, json_string_value(value));
    }
    return KVF_OK;
}

int weightset_open(const char *folder, struct weightset *out, struct kvf_err *err)
{
    *out = (struct weightset){0};
    int rc = weight_names_read(folder, &out->names, err);
    if (rc == KVF_OK) rc = files_open(folder, out, err);
    if (rc != KVF_OK) weightset_close(out);
    return rc;
}

void weightset_close(struct weightset *set)
{
    for (int i = 0; i < set->names.count && set->file != NULL; i++) safetensors_close(&set->file[i]);
    for (int i = 0; i < set->copy_count; i++) free(set->copies[i]);
    free(set->copies);
    free(set->file);
    weight_names_free(&set->names);
    *set = (struct weightset){0};
}

const struct tensor *weightset_find(const struct weightset *set, const char *name, const char **file_name)
{
    int index = 0;
    if (set->names.weight_map != NULL) {
        const char *shard = json_string_value(json_object_get(set->names.weight_map, name));
        index = shard == NULL ? -1 : name_find(&set->names, shard);
    }
    if (index < 0) return NULL;
    if (file_name != NULL) *file_name = set->names.name[index];
    return safetensors_find(&set->file[index], name);
}

const void *weightset_aligned(struct weightset *set, const struct tensor *tensor, int item)
{
    if ((uintptr_t)tensor->data % (uintptr_t)item == 0) return tensor->data;
    void **copies = realloc(set->copies, ((size_t)set->copy_count + 1) * sizeof *copies);
    if (copies == NULL) return NULL;
    set->copies = copies;
    void *copy = malloc((size_t)tensor->bytes + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, tensor->data, (size_t)tensor->bytes);
    set->copies[set->copy_count++] = copy;
    return copy;
}
