// Ludus for engines of one's own: a game becomes a simulator of a training run. C++17; ludus.h is the same for C.
//
// A client belongs to one thread. It has none of its own: everything happens inside `next`, which never blocks for
// longer than it is told to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ludus.h"  // LUDUS_API

namespace ludus {

// What went wrong, as a sentence for people, with a stable name (proto/README.md lists those of the server).
class LUDUS_API Error : public std::runtime_error {
public:
    Error(std::string code, const std::string& sentence) : std::runtime_error(sentence), code_(std::move(code)) {}
    const std::string& code() const noexcept { return code_; }

private:
    std::string code_;
};

enum class Type { float32, uint8 };

struct Observation {
    std::string name;
    std::vector<std::uint32_t> shape;  // (size), (channels, height, width), or (entities, size)
    Type type = Type::float32;         // uint8: pictures, 0 to 255
    bool goal = false;                 // The policy is conditioned on it.
    bool entities = false;             // (entities, size) in any order; rows of zeros are padding.
};

struct Behavior {
    std::string name;  // As in the run's configuration; a team may follow: "Striker?team=1".
    std::vector<Observation> observations;
    std::uint32_t continuous = 0;         // Actions in [-1, 1].
    std::vector<std::uint32_t> branches;  // Choices of each discrete action.
};

struct LUDUS_API Options {
    std::string run;                        // Id or name.
    std::string server = "127.0.0.1:7070";  // The gateway.
    std::string token;
    bool tls = false;                                    // With the certificate authorities of this machine;
    std::string ca_file, certificate_file, key_file;     // or with this one, and with a certificate of one's own.
    std::string label;                                   // For people, in the list of simulators.
    double patience = 0;                                 // Give up when nothing answers for so many seconds; 0: never.
    void (*say)(const std::string& sentence) = nullptr;  // Gets sentences for people; nullptr: standard error.

    // Reads LUDUS_RUN, LUDUS_SIMULATOR_SERVER, LUDUS_SIMULATOR_TOKEN or LUDUS_TOKEN, then `--run`, `--server`,
    // `--token`,
    // `--ca-file` and `--connect-timeout` (patience). Throws Error("usage") without a run.
    static Options from(int argc, const char* const* argv);
};

enum class Event {
    start,     // Begin new episodes of all agents: connected, connected again, or reset.
    actions,   // Some agents were answered; see `actions`.
    nothing,   // The time is over.
    finished,  // The run has ended well.
};

enum class Outcome : std::uint8_t { unknown, win, draw, loss };
enum class Aggregation { average = 1, most_recent, sum, histogram };

// Bytes that the caller keeps.
struct View {
    const void* data = nullptr;
    std::size_t size = 0;
    View() = default;
    View(const void* bytes, std::size_t count) : data(bytes), size(count) {}
    template <class T>
    View(const std::vector<T>& values) : data(values.data()), size(values.size() * sizeof(T)) {}
    template <class T, std::size_t N>
    View(const std::array<T, N>& values) : data(values.data()), size(N * sizeof(T)) {}
    template <class T, std::size_t N>
    View(const T (&values)[N]) : data(values), size(N * sizeof(T)) {}
};

// N agents of a behavior, column by column. Empty columns are left out; `agents` and `observations` are needed.
struct Columns {
    View agents;                     // int32, of the game's choice
    View rewards;                    // float32: since each agent's last decision; empty: zeros
    std::vector<View> observations;  // one for each observation of the behavior, with a row for each agent
    View masks;                      // uint8, a row of all branches' choices: 1 = allowed
    View groups;                     // int32: 0 = none; equal ones are team mates
    View group_rewards;              // float32
    View truncated;                  // uint8, of ends: 1 = a limit cut the episode; empty: the task has ended
    View outcomes;                   // uint8, of ends: Outcome
};

// What one agent adds to its observation and reward.
struct Extra {
    View mask;
    std::int32_t group = 0;
    float group_reward = 0;
    Outcome outcome = Outcome::unknown;
    std::size_t behavior = 0;
};

// The answered agents of a behavior.
struct Actions {
    std::size_t behavior = 0;
    std::vector<std::int32_t> agents;
    std::vector<float> continuous;       // a row of `Behavior::continuous` numbers for each agent
    std::vector<std::int32_t> discrete;  // a row of one choice for each branch
};

class LUDUS_API Client {
public:
    // Behaviors are known by their place in the list. Throws Error for options that cannot be used.
    Client(Options options, std::vector<Behavior> behaviors);
    ~Client();  // Leaves the run.
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Sends what was asked and ended since the last call, and returns what comes next, within so many seconds. Joins,
    // and joins again, as long as the run accepts it. Throws Error when the run refuses, fails or is cancelled.
    Event next(double seconds = std::numeric_limits<double>::infinity());

    // Agents that need an action; one without an episode begins one. Throws Error for data of a wrong size.
    void ask(std::size_t behavior, const Columns& columns);
    void ask(std::int32_t agent, std::initializer_list<View> observations, float reward = 0, const Extra& extra = {});

    // Agents whose episode has ended, with the last observation and reward.
    void end(std::size_t behavior, const Columns& columns);
    void end(std::int32_t agent, std::initializer_list<View> observations, float reward, bool truncated = false,
             const Extra& extra = {});

    void report(const std::string& key, float value, Aggregation aggregation = Aggregation::average);

    const std::vector<Actions>& actions() const;             // After Event::actions, until the next call of `next`.
    const std::map<std::string, float>& parameters() const;  // Environment parameters, for episodes that begin now.
    float parameter(const std::string& name, float otherwise) const;
    std::int64_t seed() const;  // This simulator's own. Seed once, at the first start.
    const std::string& run_id() const;

private:
    struct Implementation;
    std::unique_ptr<Implementation> self_;
};

}  // namespace ludus
