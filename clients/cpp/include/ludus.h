/* Ludus for engines of one's own, as a C ABI: for C, Unreal, Rust, Swift, Lua, C# and whatever calls C. ludus.hpp explains
 * the calls; here functions return LUDUS_ERROR (or NULL) where C++ throws. A client belongs to one thread. */
#ifndef LUDUS_H
#define LUDUS_H

#include <stddef.h>
#include <stdint.h>

#ifndef LUDUS_API
#ifdef _WIN32
#define LUDUS_API __declspec(dllexport)
#else
#define LUDUS_API __attribute__((visibility("default")))
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ludus_client ludus_client;

enum { LUDUS_FLOAT32 = 0, LUDUS_UINT8 = 1, LUDUS_GOAL = 2, LUDUS_ENTITIES = 4 }; /* flags of an observation */
enum { LUDUS_ERROR = -1, LUDUS_START = 0, LUDUS_ACTIONS = 1, LUDUS_NOTHING = 2, LUDUS_FINISHED = 3 };
enum { LUDUS_AVERAGE = 1, LUDUS_MOST_RECENT = 2, LUDUS_SUM = 3, LUDUS_HISTOGRAM = 4 };

/* NULL where the environment says it (LUDUS_RUN, LUDUS_SIMULATOR_SERVER, LUDUS_SIMULATOR_TOKEN), and without TLS. */
LUDUS_API ludus_client *ludus_open(const char *run, const char *server, const char *token, const char *ca_file);
LUDUS_API void ludus_close(ludus_client *client);

/* Before the first ludus_next. Return the number of the behavior, and of the observation. */
LUDUS_API int ludus_behavior(ludus_client *client, const char *name, uint32_t continuous, const uint32_t *branches, size_t count);
LUDUS_API int ludus_observation(ludus_client *client, size_t behavior, const char *name, const uint32_t *shape, size_t dimensions,
                      int flags);

/* Returns one of LUDUS_START, ... Waits for at most so many seconds; without end if they are negative. */
LUDUS_API int ludus_next(ludus_client *client, double seconds);

/* Columns of `count` agents; `observations` has a pointer for each observation. NULL leaves a column out. */
typedef struct {
    size_t count;
    const int32_t *agents;
    const float *rewards;
    const void *const *observations;
    const uint8_t *masks;
    const int32_t *groups;
    const float *group_rewards;
    const uint8_t *truncated; /* of ends */
    const uint8_t *outcomes;  /* of ends: 1 win, 2 draw, 3 loss */
} ludus_columns;
LUDUS_API int ludus_ask(ludus_client *client, size_t behavior, const ludus_columns *columns);
LUDUS_API int ludus_end(ludus_client *client, size_t behavior, const ludus_columns *columns);
LUDUS_API int ludus_report(ludus_client *client, const char *key, float value, int aggregation);

/* The answered agents of a behavior, until the next call of ludus_next. Returns how many. */
LUDUS_API size_t ludus_actions(ludus_client *client, size_t behavior, const int32_t **agents, const float **continuous,
                     const int32_t **discrete);
LUDUS_API float ludus_parameter(ludus_client *client, const char *name, float otherwise);
LUDUS_API int64_t ludus_seed(ludus_client *client);

/* Of this thread: the sentence and the stable name of the last error; never NULL. */
LUDUS_API const char *ludus_last_error(void);
LUDUS_API const char *ludus_last_code(void);

#ifdef __cplusplus
}
#endif
#endif
