/* key_file.h: the table of authorised keys that the coordinator reads from its key folder. Internal to proto/; making
 * and loading key pairs is in wire.h. */
#ifndef KVF_PROTO_KEY_FILE_H
#define KVF_PROTO_KEY_FILE_H

#include "proto/wire.h"

#define KEY_BYTES 32

struct key_entry {
    unsigned char key[KEY_BYTES];
    char key_z85[KEY_Z85_LEN + 1], name[64];
    enum key_role role;
    uint64_t strikes; /* messages that were refused */
};
/* Hash table with open addressing; n_slots is a power of two, at least twice the keys; role ROLE_NONE marks a free
 * slot. */
struct key_table {
    struct key_entry *slots;
    size_t n_slots, n_keys;
};

/* Every authorized/NAME.public: one bad file fails the whole. */
KVF_MUSTCHECK int key_table_load(const char *folder, struct key_table *out, struct kvf_err *err);
void key_table_free(struct key_table *table);
struct key_entry *key_table_find(const struct key_table *table, const unsigned char key[KEY_BYTES]);
const char *key_role_name(enum key_role role); /* "worker", "client" */

#endif
