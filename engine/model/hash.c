/* hash.c: see hash.h. */
#include "engine/model/hash.h"

#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include "engine/model/model.h"

static int file_add(crypto_hash_sha256_state *state, const char *folder, const char *name, struct kvf_err *err)
{
    struct filemap map;
    int rc = filemap_open(folder, name, &map, err);
    if (rc != KVF_OK) return rc;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)map.size >> (8 * i));
    crypto_hash_sha256_update(state, (const unsigned char *)name, strlen(name) + 1);
    crypto_hash_sha256_update(state, length, sizeof length);
    if (map.data != NULL) {
        madvise((void *)map.data, (size_t)map.size, MADV_SEQUENTIAL);
        crypto_hash_sha256_update(state, map.data, (unsigned long long)map.size);
    }
    filemap_close(&map);
    return KVF_OK;
}

int hash_files(const char *folder, const struct weight_names *weights, char *hex, struct kvf_err *err)
{
    static const char config[] = "config.json";
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    int config_done = 0;
    for (int i = 0; i <= weights->count; i++) {
        if (!config_done && (i == weights->count || strcmp(config, weights->name[i]) < 0)) {
            int rc = file_add(&state, folder, config, err);
            if (rc != KVF_OK) return rc;
            config_done = 1;
        }
        if (i == weights->count) break;
        int rc = file_add(&state, folder, weights->name[i], err);
        if (rc != KVF_OK) return rc;
    }
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&state, digest);
    sodium_bin2hex(hex, 2 * sizeof digest + 1, digest, sizeof digest);
    return KVF_OK;
}

int model_hash_folder(const char *folder, char *hex, struct kvf_err *err)
{
    hex[0] = '\0';
    struct weight_names names;
    int rc = weight_names_read(folder, &names, err);
    if (rc != KVF_OK) return rc;
    rc = hash_files(folder, &names, hex, err);
    weight_names_free(&names);
    return rc;
}
