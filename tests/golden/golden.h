/* golden.h: what every program of tests/golden needs: where the reference files are, reading them, comparing.
 *
 * Header only, static inline; needs Check and Jansson. KVF_GOLDEN names the folder of reference outputs and KVF_SOURCE
 * the root of this source tree. A program whose folder is not given calls golden_require first and ends with exit code
 * 77, which the runner counts as skipped. Any reference file that is there but cannot be read fails the test.
 */
#ifndef KVF_GOLDEN_H
#define KVF_GOLDEN_H

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_SKIP 77
#define GOLDEN_PATH 4096

/* The value of an environment variable, or ends the program as skipped. Call before the suite runs. */
static inline const char *golden_require(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        printf("skip: %s is not set\n", name);
        exit(GOLDEN_SKIP);
    }
    return value;
}

/* path[GOLDEN_PATH] = $variable/relative */
static inline void golden_path(char *path, const char *variable, const char *relative)
{
    const char *root = getenv(variable);
    ck_assert_msg(root != NULL, "%s is not set", variable);
    int len = snprintf(path, GOLDEN_PATH, "%s/%s", root, relative);
    ck_assert_msg(len > 0 && len < GOLDEN_PATH, "path too long: %s/%s", root, relative);
}

/* ---- whole files ---- */

/* NUL-terminated copy of a file below $variable; caller frees. `len` may be NULL. */
static inline char *golden_read(const char *variable, const char *relative, size_t *len)
{
    char path[GOLDEN_PATH];
    golden_path(path, variable, relative);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    ck_assert_int_ge(size, 0);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(fread(text, 1, (size_t)size, file), (size_t)size);
    text[size] = '\0';
    fclose(file);
    if (len != NULL) *len = (size_t)size;
    return text;
}

/* One JSON document; caller calls json_decref. */
static inline json_t *golden_json(const char *variable, const char *relative)
{
    size_t len;
    char *text = golden_read(variable, relative, &len);
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &error);
    ck_assert_msg(root != NULL, "%s:%d: %s", relative, error.line, error.text);
    free(text);
    return root;
}

/* All lines of a .jsonl file as one JSON array, in file order; caller calls json_decref. */
static inline json_t *golden_jsonl(const char *variable, const char *relative)
{
    size_t len;
    char *text = golden_read(variable, relative, &len);
    json_t *lines = json_array();
    int number = 0;
    for (char *line = text; line < text + len;) {
        char *end = memchr(line, '\n', (size_t)(text + len - line));
        size_t size = end != NULL ? (size_t)(end - line) : (size_t)(text + len - line);
        number++;
        if (size > 0) {
            json_error_t error;
            json_t *value = json_loadb(line, size, JSON_ALLOW_NUL, &error);
            ck_assert_msg(value != NULL, "%s:%d: %s", relative, number, error.text);
            json_array_append_new(lines, value);
        }
        line += size + 1;
    }
    free(text);
    ck_assert_msg(json_array_size(lines) > 0, "%s has no line", relative);
    return lines;
}

/* ---- fields of one record ---- */

static inline json_t *golden_get(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    ck_assert_msg(value != NULL, "reference record has no \"%s\"", key);
    return value;
}

static inline const char *golden_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(golden_get(object, key));
    ck_assert_msg(text != NULL, "\"%s\" is not a string", key);
    return text;
}

static inline int64_t golden_int(const json_t *object, const char *key)
{
    const json_t *value = golden_get(object, key);
    ck_assert_msg(json_is_integer(value), "\"%s\" is not an integer", key);
    return json_integer_value(value);
}

/* A number, or one of the strings "nan", "inf", "-inf". */
static inline double golden_number(const json_t *value)
{
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        if (strcmp(text, "nan") == 0) return (double)NAN;
        if (strcmp(text, "inf") == 0) return (double)INFINITY;
        ck_assert_msg(strcmp(text, "-inf") == 0, "not a number: \"%s\"", text);
        return -(double)INFINITY;
    }
    ck_assert_msg(json_is_number(value), "not a number");
    return json_number_value(value);
}

static inline double golden_real(const json_t *object, const char *key)
{
    return golden_number(golden_get(object, key));
}

/* Copy of a JSON array of numbers; caller frees (also when it is empty). `count` may be NULL. */
static inline double *golden_reals(const json_t *array, int *count)
{
    ck_assert_msg(json_is_array(array), "not an array");
    size_t n = json_array_size(array);
    double *out = malloc((n + 1) * sizeof *out);
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < n; i++) out[i] = golden_number(json_array_get(array, i));
    if (count != NULL) *count = (int)n;
    return out;
}

static inline int64_t *golden_ints(const json_t *array, int *count)
{
    ck_assert_msg(json_is_array(array), "not an array");
    size_t n = json_array_size(array);
    int64_t *out = malloc((n + 1) * sizeof *out);
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, i);
        ck_assert_msg(json_is_integer(value), "entry %zu is not an integer", i);
        out[i] = json_integer_value(value);
    }
    if (count != NULL) *count = (int)n;
    return out;
}

/* ---- arrays.bin: little-endian float32 at a byte offset ---- */

struct golden_arrays {
    char *bytes;
    size_t len;
};

static inline struct golden_arrays golden_arrays_load(const char *variable, const char *relative)
{
    struct golden_arrays arrays;
    arrays.bytes = golden_read(variable, relative, &arrays.len);
    return arrays;
}

static inline void golden_arrays_free(struct golden_arrays *arrays)
{
    free(arrays->bytes);
    arrays->bytes = NULL;
    arrays->len = 0;
}

/* Copy of the array that {"offset":o,"shape":[...]} names; caller frees. `count` may be NULL. */
static inline float *golden_array(const struct golden_arrays *arrays, const json_t *where, size_t *count)
{
    const json_t *shape = golden_get(where, "shape");
    size_t offset = (size_t)golden_int(where, "offset");
    size_t n = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) n *= (size_t)json_integer_value(json_array_get(shape, i));
    ck_assert_msg(offset <= arrays->len && n <= (arrays->len - offset) / sizeof(float),
                  "array at %zu with %zu floats is outside %zu bytes", offset, n, arrays->len);
    float *out = malloc((n + 1) * sizeof *out);
    ck_assert_ptr_nonnull(out);
    memcpy(out, arrays->bytes + offset, n * sizeof *out);
    if (count != NULL) *count = n;
    return out;
}

/* ---- running ---- */

/* Runs the suite and returns the exit status of main. */
static inline int golden_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
