/* policy_key.h: the parameters of policies: one table with name, kind, range, default, who reads it, what it means.
 * Internal to alloc/. */
#ifndef KVF_POLICY_KEY_H
#define KVF_POLICY_KEY_H

#include <stdint.h>

#include "alloc/policy.h"

enum key_kind { KEY_INT, KEY_ODD, KEY_REAL, KEY_WORD };
struct policy_key {
    const char *name;
    enum key_kind kind;
    size_t offset; /* in struct policy: int for KEY_INT, KEY_ODD, enum for KEY_WORD, double for KEY_REAL */
    double min, max, standard;
    const char *words[5];    /* KEY_WORD: spelling of value 0, 1, ...; NULL past the last */
    unsigned plans, routers; /* those that read it: 1 << enum value, ored; scorers name theirs in scorer.keys */
    int every;               /* every policy that evicts reads it */
    const char *meaning;
};

/* NULL past the end. */
const struct policy_key *key_at(int index);
/* Whether `key` is in a space-separated list, as a scorer's. */
int key_of_list(const struct policy_key *key, const char *list);
int key_used(const struct policy_key *key, const struct policy *policy);
/* Refuses a parameter that was written out, bit i of `given` for key_at(i), where the policy's other values leave it
 * without effect. */
KVF_MUSTCHECK int keys_idle_check(const struct policy *policy, uint64_t given, struct kvf_err *err);
/* The value of `key` in a policy, with which it compares and prints; doubles hold every int exactly. */
double key_value(const struct policy_key *key, const struct policy *policy);
/* The shortest spelling that reads back as the same value. */
void key_print(const struct policy_key *key, double value, char *text, size_t cap);
/* What values are allowed: "an odd number from 1 to 255", "raw or relative". */
void key_range_print(const struct policy_key *key, char *text, size_t cap);
/* Sets from what a user typed; the line names policy, key, range and text. */
KVF_MUSTCHECK int key_set(const struct policy_key *key, struct policy *policy, const char *text, struct kvf_err *err);
/* Every parameter to its default; `sinks` is the scorer's own. */
void keys_reset(struct policy *policy);

#endif
