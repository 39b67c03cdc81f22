/* The smallest game, in C: one walker on a line, which is to reach the right end. */
#include <stdio.h>

#include "ludus.h"

static int failed(void) {
    fprintf(stderr, "%s: %s\n", ludus_last_code(), ludus_last_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *run = NULL, *server = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (argv[i][2] == 'r') run = argv[i + 1]; /* --run */
        if (argv[i][2] == 's') server = argv[i + 1]; /* --server */
    }
    ludus_client *client = ludus_open(run, server, NULL, NULL);
    const uint32_t branches[] = {2}, shape[] = {1};
    if (!client || ludus_behavior(client, "Walker", 0, branches, 1) < 0) return failed();
    if (ludus_observation(client, 0, "place", shape, 1, LUDUS_FLOAT32) < 0) return failed();

    const int32_t agent = 0, *choice = NULL;
    float place = 0, reward = 0;
    const void *observations[] = {&place};
    const ludus_columns walker = {.count = 1, .agents = &agent, .rewards = &reward, .observations = observations};
    for (int event; (event = ludus_next(client, -1)) != LUDUS_FINISHED;) {
        if (event == LUDUS_ERROR) return failed();
        if (event == LUDUS_START) place = 0;
        reward = -0.1F;
        if (event == LUDUS_ACTIONS && ludus_actions(client, 0, NULL, NULL, &choice)) place += *choice ? 0.25F : -0.25F;
        if (place >= 1 || place <= -1) { /* the episode ends, and the next one begins in the same message */
            reward = place > 0 ? 1 : -1;
            if (ludus_end(client, 0, &walker) < 0) return failed();
            place = 0;
        }
        if (ludus_ask(client, 0, &walker) < 0) return failed();
    }
    ludus_close(client);
    return 0;
}
