/* message_table.h: where the fields of messages.def lie in the C structs. Internal to proto/: the codec walks these
 * tables, it has no code of its own for any message. */
#ifndef KVF_PROTO_MESSAGE_TABLE_H
#define KVF_PROTO_MESSAGE_TABLE_H

#include "proto/message.h"

#define MSG_KEY_MAX 255

struct layout;
struct place {
    size_t offset;                        /* of the member */
    size_t count_offset;                  /* of n_<field> (L, D) */
    const struct layout *(*record)(void); /* L */
};
struct layout {
    const char *name;
    size_t size; /* of the C struct */
    int n_fields, n_required;
    const struct msg_field *fields; /* [n_fields] */
    const struct place *places;     /* [n_fields] */
};

/* NULL when there is no such message or record. */
const struct layout *layout_of_type(int type);
const struct layout *layout_of_record(const char *name);
/* Index of the field with this key, -1 for a key that this version does not know. */
int layout_find(const struct layout *layout, uint64_t key);
/* Must a message have this kind of field? */
int kind_is_required(char kind);

/* Every member absent or 0. */
void layout_init(const struct layout *layout, void *record);

#endif
