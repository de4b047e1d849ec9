/* engine_reference.h: reading the decoder's reference outputs. Header only; needs Check and Jansson. A file that cannot
 * be read, or lacks a field, fails the test. */
#ifndef KVF_ENGINE_REFERENCE_H
#define KVF_ENGINE_REFERENCE_H

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFERENCE_PATH 4096

/* Ends the program as skipped where an environment variable is not set. */
static inline void reference_require(const char *name)
{
    if (getenv(name) != NULL) return;
    printf("skip: %s is not set\n", name);
    exit(77);
}

/* path[REFERENCE_PATH] = $variable/relative */
static inline void reference_path(char *path, const char *variable, const char *relative)
{
    snprintf(path, REFERENCE_PATH, "%s/%s", getenv(variable), relative);
}

static inline json_t *reference_json(const char *variable, const char *relative)
{
    char path[REFERENCE_PATH];
    json_error_t error;
    reference_path(path, variable, relative);
    json_t *root = json_load_file(path, 0, &error);
    ck_assert_msg(root != NULL, "%s:%d: %s", path, error.line, error.text);
    return root;
}

/* The lines of a .jsonl file as one array. */
static inline json_t *reference_lines(const char *variable, const char *relative)
{
    char path[REFERENCE_PATH], *line = NULL;
    size_t cap = 0;
    reference_path(path, variable, relative);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    json_t *lines = json_array();
    while (getline(&line, &cap, file) > 0) {
        json_t *value = json_loads(line, 0, NULL);
        ck_assert_msg(value != NULL, "%s: line %zu is not JSON", path, json_array_size(lines) + 1);
        json_array_append_new(lines, value);
    }
    free(line);
    fclose(file);
    return lines;
}

static inline const json_t *reference_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(value != NULL, "reference record has no \"%s\"", key);
    return value;
}

static inline const char *reference_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(reference_get(object, key));
    ck_assert_msg(text != NULL, "\"%s\" is not a string", key);
    return text;
}

/* Copies that the caller frees. */
static inline double *reference_reals(const json_t *array, int *count)
{
    *count = (int)json_array_size(array);
    double *values = malloc(((size_t)*count + 1) * sizeof *values);
    for (int i = 0; i < *count; i++) values[i] = json_number_value(json_array_get(array, (size_t)i));
    return values;
}

static inline int32_t *reference_ids(const json_t *array, int *count)
{
    *count = (int)json_array_size(array);
    int32_t *ids = malloc(((size_t)*count + 1) * sizeof *ids);
    for (int i = 0; i < *count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}

#endif
