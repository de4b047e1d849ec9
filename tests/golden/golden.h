/* golden.h: what golden tests share: the reference folder, JSON lines, float32 arrays. Test code: it exits on trouble.
 */
#ifndef KVF_TEST_GOLDEN_H
#define KVF_TEST_GOLDEN_H

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The folder of reference outputs, or the end of the program as a skip. */
static inline const char *golden_folder(void)
{
    const char *folder = getenv("KVF_GOLDEN");
    if (folder == NULL) {
        printf("skip: KVF_GOLDEN is not set\n");
        exit(77);
    }
    return folder;
}

static inline char *golden_path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", golden_folder(), name);
    return path;
}

/* Whole file, NUL-terminated; *len without it. */
static inline char *golden_read(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    if (text == NULL || fread(text, 1, (size_t)size, file) != (size_t)size) {
        perror(path);
        exit(1);
    }
    text[size] = '\0';
    fclose(file);
    if (len != NULL) *len = (size_t)size;
    return text;
}

/* All objects of a .jsonl file as one array. */
static inline json_t *golden_lines(const char *path)
{
    char *text = golden_read(path, NULL), *save = NULL;
    json_t *rows = json_array();
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        json_error_t error;
        json_t *row = json_loads(line, 0, &error);
        if (row == NULL) {
            fprintf(stderr, "%s: %s\n", path, error.text);
            exit(1);
        }
        json_array_append_new(rows, row);
    }
    free(text);
    return rows;
}

static inline const char *golden_text(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

/* A number, or "nan", "inf", "-inf" as the references write them. */
static inline double golden_number(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL ? strtod(text, NULL) : json_number_value(value);
}
static inline double golden_real(const json_t *row, const char *key)
{
    return golden_number(json_object_get(row, key));
}
static inline int golden_int(const json_t *row, const char *key)
{
    return (int)json_integer_value(json_object_get(row, key));
}

/* {"offset", "shape"} in an array file that golden_read gave; pointer into it. */
static inline const float *golden_array(const char *arrays, const json_t *where)
{
    return (const float *)(const void *)(arrays + json_integer_value(json_object_get(where, "offset")));
}

#endif
