// The C ABI: no exception leaves it.
#include "ludus.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ludus.hpp"

struct ludus_client {
    ludus::Options options;
    std::vector<ludus::Behavior> behaviors;
    std::vector<std::size_t> choices;  // of all branches of each behavior
    std::unique_ptr<ludus::Client> client;
};

namespace {

thread_local std::string last_error, last_code;

// Runs a function, and returns what it does; `failure`, and the error of this thread, where it throws.
template <class Result, class Function>
Result guarded(Result failure, Function function) noexcept {
    try {
        return function();
    } catch (const ludus::Error& error) {
        last_error = error.what();
        last_code = error.code();
    } catch (const std::exception& error) {
        last_error = error.what();
        last_code = "internal_error";
    }
    return failure;
}

ludus_client& given(ludus_client* client) {
    if (!client) throw ludus::Error("usage", "the client is NULL");
    return *client;
}

ludus::Client& started(ludus_client* client) {
    if (!given(client).client) throw ludus::Error("not_connected", "call ludus_next first");
    return *client->client;
}

std::size_t known(const ludus_client& client, std::size_t behavior) {
    if (behavior >= client.behaviors.size())
        throw ludus::Error("unknown_behavior", "there is no behavior " + std::to_string(behavior));
    return behavior;
}

ludus::View column(const void* data, std::size_t size) { return data ? ludus::View(data, size) : ludus::View(); }

ludus::Columns columns_of(const ludus_client& client, std::size_t behavior, const ludus_columns* given) {
    if (!given || (given->count && (!given->agents || !given->observations)))
        throw ludus::Error("usage", "columns need agents and observations");
    ludus::Columns columns;
    columns.agents = column(given->agents, 4 * given->count);
    columns.rewards = column(given->rewards, 4 * given->count);
    columns.masks = column(given->masks, given->count * client.choices[behavior]);
    columns.groups = column(given->groups, 4 * given->count);
    columns.group_rewards = column(given->group_rewards, 4 * given->count);
    columns.truncated = column(given->truncated, given->count);
    columns.outcomes = column(given->outcomes, given->count);
    for (std::size_t i = 0; given->count && i < client.behaviors[behavior].observations.size(); ++i) {
        const auto& observation = client.behaviors[behavior].observations[i];
        std::size_t size = given->count * (observation.type == ludus::Type::float32 ? 4 : 1);
        for (const auto side : observation.shape) size *= side;
        if (!given->observations[i])
            throw ludus::Error("observation_count", "observation '" + observation.name + "' is NULL");
        columns.observations.emplace_back(given->observations[i], size);
    }
    return columns;
}

}  // namespace

extern "C" {

ludus_client* ludus_open(const char* run, const char* server, const char* token, const char* ca_file) {
    return guarded<ludus_client*>(nullptr, [&] {
        std::vector<const char*> words{"game"};
        for (const auto& [name, value] :
             {std::pair("--run", run), {"--server", server}, {"--token", token}, {"--ca-file", ca_file}})
            if (value) words.insert(words.end(), {name, value});
        auto client = std::make_unique<ludus_client>();
        client->options = ludus::Options::from(static_cast<int>(words.size()), words.data());
        return client.release();
    });
}

void ludus_close(ludus_client* client) { delete client; }

int ludus_behavior(ludus_client* client, const char* name, uint32_t continuous, const uint32_t* branches,
                   size_t count) {
    return guarded(LUDUS_ERROR + 0, [&] {
        if (given(client).client || !name) throw ludus::Error("usage", "name behaviors before the first ludus_next");
        ludus::Behavior behavior{name, {}, continuous, {}};
        std::size_t choices = 0;
        for (std::size_t i = 0; i < count; ++i) {
            behavior.branches.push_back(branches[i]);
            choices += branches[i];
        }
        client->behaviors.push_back(std::move(behavior));
        client->choices.push_back(choices);
        return static_cast<int>(client->behaviors.size() - 1);
    });
}

int ludus_observation(ludus_client* client, size_t behavior, const char* name, const uint32_t* shape, size_t dimensions,
                      int flags) {
    return guarded(LUDUS_ERROR + 0, [&] {
        if (given(client).client || !shape)
            throw ludus::Error("usage", "name observations before the first ludus_next");
        auto& observations = client->behaviors[known(*client, behavior)].observations;
        const auto type = flags & LUDUS_UINT8 ? ludus::Type::uint8 : ludus::Type::float32;
        observations.push_back({name ? name : "",
                                {shape, shape + dimensions},
                                type,
                                (flags & LUDUS_GOAL) != 0,
                                (flags & LUDUS_ENTITIES) != 0});
        return static_cast<int>(observations.size() - 1);
    });
}

int ludus_next(ludus_client* client, double seconds) {
    return guarded(LUDUS_ERROR + 0, [&] {
        if (!given(client).client) client->client = std::make_unique<ludus::Client>(client->options, client->behaviors);
        return static_cast<int>(seconds < 0 ? client->client->next() : client->client->next(seconds));
    });
}

int ludus_ask(ludus_client* client, size_t behavior, const ludus_columns* columns) {
    return guarded(LUDUS_ERROR + 0, [&] {
        auto& playing = started(client);
        playing.ask(behavior, columns_of(*client, known(*client, behavior), columns));
        return 0;
    });
}

int ludus_end(ludus_client* client, size_t behavior, const ludus_columns* columns) {
    return guarded(LUDUS_ERROR + 0, [&] {
        auto& playing = started(client);
        playing.end(behavior, columns_of(*client, known(*client, behavior), columns));
        return 0;
    });
}

int ludus_report(ludus_client* client, const char* key, float value, int aggregation) {
    return guarded(LUDUS_ERROR + 0, [&] {
        started(client).report(key ? key : "", value, static_cast<ludus::Aggregation>(aggregation));
        return 0;
    });
}

size_t ludus_actions(ludus_client* client, size_t behavior, const int32_t** agents, const float** continuous,
                     const int32_t** discrete) {
    return guarded<std::size_t>(0, [&]() -> std::size_t {
        for (const auto& batch : started(client).actions()) {
            if (batch.behavior != behavior) continue;
            if (agents) *agents = batch.agents.data();
            if (continuous) *continuous = batch.continuous.data();
            if (discrete) *discrete = batch.discrete.data();
            return batch.agents.size();
        }
        return 0;
    });
}

float ludus_parameter(ludus_client* client, const char* name, float otherwise) {
    return guarded(otherwise, [&] { return started(client).parameter(name ? name : "", otherwise); });
}

int64_t ludus_seed(ludus_client* client) {
    return guarded<int64_t>(0, [&] { return started(client).seed(); });
}

const char* ludus_last_error(void) { return last_error.c_str(); }
const char* ludus_last_code(void) { return last_code.c_str(); }

}  // extern "C"
