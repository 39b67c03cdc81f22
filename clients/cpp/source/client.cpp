// The client: proto/README.md in C++. One attempt after the other, each a Call: Join, dial, Hello, play.
#include "ludus.hpp"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>

#include "ludus/v1/simulation.grpc.pb.h"

namespace ludus {
namespace detail {

namespace pb = v1;
using Clock = std::chrono::system_clock;  // gRPC's deadlines are of this clock
using Time = Clock::time_point;

constexpr const char* kName = "ludus-cpp/0.1.0";
constexpr int kVersion = 1, kHoldSeconds = 30, kMaxMessageBytes = 64 << 20, kDeadCollectors = 3;

Time after(double seconds) {  // a year stands for ever: clocks overflow
    return Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(1000 * std::clamp(seconds, 0.0, 3.2e7)));
}

std::string text_of(const std::string& path) {
    if (path.empty()) return {};
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error("tls", "cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

std::string new_session_id() {
    std::random_device random;
    std::string id;
    for (int i = 0; i < 32; ++i) id += "0123456789abcdef"[random() % 16];
    return id;
}

std::string metadata(const std::multimap<grpc::string_ref, grpc::string_ref>& all, const char* key) {
    const auto found = all.find(key);
    return found == all.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::size_t item_size(Type type) { return type == Type::float32 ? 4 : 1; }

// Appends rows to a column that may be absent: rows that lack it get `fill` once one row has it.
void extend(std::string& column, const View& given, std::size_t before, std::size_t added, char fill) {
    if (!given.size && column.empty()) return;
    if (column.empty()) column.assign(before, fill);
    if (given.size)
        column.append(static_cast<const char*>(given.data), given.size);
    else
        column.append(added, fill);
}

// One attempt to play. Its queue is empty and closed before anything that an operation may touch is destroyed.
struct Call {
    enum Tag : std::intptr_t { waits = 1, joined, dialed, started, got, wrote, half_closed, ended };

    grpc::CompletionQueue queue;
    grpc::ClientContext join_context, context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<pb::JoinResponse>> joining;
    pb::JoinResponse answer;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<pb::SimulationService::Stub> stub;
    std::unique_ptr<grpc::ClientAsyncReaderWriter<pb::ConnectRequest, pb::ConnectResponse>> stream;
    pb::ConnectResponse incoming;
    std::deque<pb::ConnectRequest> outbox;  // the first one is being written
    grpc::Status status;
    Time dial_until;
    bool relayed = false, over = false;

    ~Call() {
        join_context.TryCancel();
        context.TryCancel();
        queue.Shutdown();
        void* tag = nullptr;
        for (bool ok = false; queue.Next(&tag, &ok);) {
        }
    }
    void write(pb::ConnectRequest request) {
        outbox.push_back(std::move(request));
        if (outbox.size() == 1) stream->Write(outbox.front(), as_tag(wrote));
    }
    static void* as_tag(Tag tag) { return reinterpret_cast<void*>(tag); }
};

// A behavior, and which of its agents wait for the answer to which step.
struct Part {
    struct Asked {
        std::vector<std::int32_t> agents;  // in the order of the step
        std::size_t open = 0;              // those that wait still
    };
    Behavior behavior;
    std::size_t choices = 0;  // of all branches
    std::unordered_map<std::int32_t, std::uint64_t> waiting;
    std::map<std::uint64_t, Asked> asked;
    pb::BehaviorStep staged;

    void answered(std::int32_t agent) {
        const auto found = waiting.find(agent);
        if (found == waiting.end()) return;
        const auto step = asked.find(found->second);
        if (--step->second.open == 0) asked.erase(step);
        waiting.erase(found);
    }
    void forget() {
        waiting.clear();
        asked.clear();
        staged.Clear();
    }
};

[[noreturn]] void refuse(const std::string& code, const Part& part, const std::string& sentence) {
    throw Error(code, "behavior '" + part.behavior.name + "': " + sentence);
}

// Checks a column's size, in bytes; an empty one may be left out.
void check(const Part& part, const char* name, const View& column, std::size_t size) {
    if (column.size && column.size != size)
        refuse("column_length", part,
               std::string(name) + " needs " + std::to_string(size) + " bytes, not " + std::to_string(column.size));
}

// Adds rows to the decisions or the ends of a step.
template <class Steps>
void add(const Part& part, const Columns& columns, Steps& steps, std::size_t rows) {
    const std::size_t before = steps.agent_ids().size() / 4;
    const auto& specs = part.behavior.observations;
    if (columns.observations.size() != specs.size())
        refuse("observation_count", part,
               "it has " + std::to_string(specs.size()) + " observations, and " +
                   std::to_string(columns.observations.size()) + " were given");
    for (std::size_t i = 0; i < specs.size(); ++i) {
        std::size_t size = rows * item_size(specs[i].type);
        for (const auto side : specs[i].shape) size *= side;
        if (columns.observations[i].size != size)
            refuse("observation_shape", part,
                   "observation '" + specs[i].name + "' needs " + std::to_string(size) + " bytes for " +
                       std::to_string(rows) + " agents, not " + std::to_string(columns.observations[i].size));
    }
    check(part, "rewards", columns.rewards, 4 * rows);
    check(part, "groups", columns.groups, 4 * rows);
    check(part, "group_rewards", columns.group_rewards, 4 * rows);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        auto* tensor = before ? steps.mutable_observations(static_cast<int>(i)) : steps.add_observations();
        tensor->set_dtype(specs[i].type == Type::float32 ? pb::DTYPE_FLOAT32 : pb::DTYPE_UINT8);
        tensor->clear_shape();
        tensor->add_shape(static_cast<std::uint32_t>(before + rows));
        for (const auto side : specs[i].shape) tensor->add_shape(side);
        tensor->mutable_data()->append(static_cast<const char*>(columns.observations[i].data),
                                       columns.observations[i].size);
    }
    steps.mutable_agent_ids()->append(static_cast<const char*>(columns.agents.data), columns.agents.size);
    steps.mutable_rewards()->resize(4 * before);
    if (columns.rewards.size)
        steps.mutable_rewards()->append(static_cast<const char*>(columns.rewards.data), 4 * rows);
    else
        steps.mutable_rewards()->append(4 * rows, 0);
    extend(*steps.mutable_group_ids(), columns.groups, 4 * before, 4 * rows, 0);
    extend(*steps.mutable_group_rewards(), columns.group_rewards, 4 * before, 4 * rows, 0);
}

std::vector<std::int32_t> ids_of(const Part& part, const View& agents) {
    std::vector<std::int32_t> ids(agents.size / 4);
    if (agents.size % 4) refuse("column_length", part, "agents are int32");
    if (!ids.empty()) std::memcpy(ids.data(), agents.data, agents.size);
    auto sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) refuse("duplicate_agent", part, "agent " + std::to_string(*twice) + " is named twice");
    return ids;
}

}  // namespace detail
using namespace detail;

struct Client::Implementation {
    enum class State { pausing, joining, dialing, greeting, playing };

    Options options;
    std::vector<Part> parts;
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    std::shared_ptr<grpc::Channel> gateway;
    std::unique_ptr<pb::SimulationService::Stub> gateway_stub;
    std::unique_ptr<Call> call;
    State state = State::pausing;
    Time until = Clock::now(), heard = Clock::now(), received = Clock::now();
    const std::string session_id = new_session_id();
    int failures = 0, unreachable = 0;
    bool relay = false, was_direct = false;
    std::optional<Event> event;
    std::optional<Error> fate;  // why this client cannot go on
    std::string said, run_id;
    std::uint64_t step_id = 0;
    std::uint32_t reset_id = 0;
    std::uint64_t max_message_bytes = kMaxMessageBytes;
    std::int64_t seed = 0;
    std::map<std::string, float> parameters;
    std::vector<Actions> actions;
    pb::Step staged;  // the stats; parts have the rest
    std::mt19937 random{std::random_device{}()};

    Implementation(Options given, std::vector<Behavior> behaviors) : options(std::move(given)) {
        for (auto& behavior : behaviors) {
            Part part{std::move(behavior), 0, {}, {}, {}};
            for (const auto branch : part.behavior.branches) part.choices += branch;
            parts.push_back(std::move(part));
        }
        if (options.run.empty()) throw Error("usage", "name the run: Options::run, --run or LUDUS_RUN");
        if (options.tls || !options.ca_file.empty())
            credentials = grpc::SslCredentials(
                {text_of(options.ca_file), text_of(options.key_file), text_of(options.certificate_file)});
        else
            credentials = grpc::InsecureChannelCredentials();
        gateway = dial(options.server, credentials);
        gateway_stub = pb::SimulationService::NewStub(gateway);
    }

    static std::shared_ptr<grpc::Channel> dial(const std::string& address,
                                               const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
        arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
        arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
        arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 250);
        arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else a new channel waits as a former one does
        return grpc::CreateCustomChannel(address, credentials, arguments);
    }

    void say(const std::string& sentence) {
        if (sentence.empty() || sentence == said) return;
        said = sentence;
        if (options.say)
            options.say(sentence);
        else
            std::cerr << sentence << std::endl;
    }

    [[noreturn]] void give_up(const std::string& code, const std::string& sentence) {
        fate = Error(code, sentence);
        throw *fate;
    }

    // --- The loop ---------------------------------------------------------------------------------------------------

    Event next(double seconds) {
        if (fate) throw *fate;
        const Time deadline = after(seconds);
        if (state == State::playing && !event) flush(std::isinf(seconds));
        actions.clear();
        while (!event)
            if (!advance(deadline)) return Event::nothing;
        const Event result = *event;
        if (result != Event::finished)
            event.reset();
        else
            call.reset();
        return result;
    }

    // Does what comes next; returns false if nothing has come by the deadline.
    bool advance(Time deadline) {
        if (state == State::pausing) {
            std::this_thread::sleep_until(std::min(deadline, until));
            if (Clock::now() < until) return false;
            join();
            return true;
        }
        void* tag = nullptr;
        bool ok = false;
        const Time limit = state == State::greeting ? std::min(deadline, until) : deadline;
        switch (call->queue.AsyncNext(&tag, &ok, limit)) {
            case grpc::CompletionQueue::GOT_EVENT:
                handle(static_cast<Call::Tag>(reinterpret_cast<std::intptr_t>(tag)), ok);
                return true;
            case grpc::CompletionQueue::TIMEOUT:
                if (state != State::greeting || Clock::now() < until) return false;
                failed("the server did not answer Hello");
                return true;
            default: return true;
        }
    }

    void handle(Call::Tag tag, bool ok) {
        switch (tag) {
            case Call::waits:
                if (ok) {
                    const auto reason = metadata(call->join_context.GetServerInitialMetadata(), "ludus-waits-bin");
                    if (!reason.empty()) say("waiting: " + reason);
                }
                call->joining->Finish(&call->answer, &call->status, Call::as_tag(Call::joined));
                break;
            case Call::joined: joined(); break;
            case Call::dialed: dialed(); break;
            case Call::started:
                if (ok) greet();
                break;  // else reading fails, too
            case Call::wrote:
                if (!ok) break;  // likewise
                call->outbox.pop_front();
                if (!call->outbox.empty()) call->stream->Write(call->outbox.front(), Call::as_tag(Call::wrote));
                break;
            case Call::got:
                if (!ok) {
                    call->over = true;
                    call->stream->Finish(&call->status, Call::as_tag(Call::ended));
                    break;
                }
                message(call->incoming);
                if (call && state != State::pausing && !event_is_final())
                    call->stream->Read(&call->incoming, Call::as_tag(Call::got));
                break;
            case Call::half_closed: break;
            case Call::ended:
                if (call->relayed && state == State::greeting) relay = false;  // perhaps the direct way works by now
                failed("the connection broke: " + call->status.error_message());
                break;
        }
    }

    bool event_is_final() const { return event == Event::finished; }

    // --- Joining ----------------------------------------------------------------------------------------------------

    void pause(double seconds) {
        call.reset();
        for (auto& part : parts) part.forget();
        staged.Clear();
        state = State::pausing;
        until = after(seconds);
    }

    void failed(const std::string& sentence) {
        say(sentence);
        if (options.patience > 0 && Clock::now() > heard + std::chrono::duration<double>(options.patience))
            give_up("unreachable", options.server + " could not be reached: " + sentence);
        const double longest = std::min(0.25 * std::pow(2.0, failures++), 15.0);
        pause(longest * std::uniform_real_distribution<double>(0.5, 1.0)(random));
    }

    void join() {
        call = std::make_unique<Call>();
        pb::JoinRequest request;
        request.set_run(options.run);
        request.set_session_id(session_id);
        request.set_protocol_version(kVersion);
        request.set_relay(relay);
        request.set_label(options.label);
        request.set_client(kName);
        request.set_max_wait_seconds(kHoldSeconds);
        if (!options.token.empty()) call->join_context.AddMetadata("authorization", "Bearer " + options.token);
        call->join_context.set_deadline(after(kHoldSeconds + 10));
        call->joining = gateway_stub->PrepareAsyncJoin(&call->join_context, request, &call->queue);
        call->joining->StartCall();
        call->joining->ReadInitialMetadata(Call::as_tag(Call::waits));
        state = State::joining;
    }

    void joined() {
        if (!call->status.ok()) return refused();
        heard = Clock::now();
        if (!call->answer.has_assignment()) {
            say("waiting: " + call->answer.wait().reason());
            return pause(std::clamp(static_cast<double>(call->answer.wait().retry_after_seconds()), 0.01, 30.0));
        }
        const auto& assignment = call->answer.assignment();
        run_id = assignment.run_id();
        call->relayed = assignment.relay();
        if (call->relayed) {
            call->channel = gateway;
            return open();
        }
        call->channel = dial(assignment.address(), assignment.tls() ? credentials : grpc::InsecureChannelCredentials());
        call->dial_until = after(2);
        state = State::dialing;
        watch();
    }

    void refused() {
        const auto& trailing = call->join_context.GetServerTrailingMetadata();
        const auto reason = metadata(trailing, "ludus-reason");
        const auto sentence = "the gateway at " + options.server + ": " + call->status.error_message();
        if (reason == "run_ended" && metadata(trailing, "ludus-run-state") == "SUCCEEDED") {
            say(call->status.error_message());
            event = Event::finished;
            return;
        }
        switch (call->status.error_code()) {
            case grpc::UNAUTHENTICATED:
            case grpc::PERMISSION_DENIED:
                give_up(reason.empty() ? "unauthenticated" : reason,
                        sentence + " (the token is that of Options::token, LUDUS_SIMULATOR_TOKEN or LUDUS_TOKEN)");
            case grpc::UNIMPLEMENTED: give_up("no_gateway", sentence + " (no gateway of Ludus listens there)");
            case grpc::INVALID_ARGUMENT:
            case grpc::NOT_FOUND:
            case grpc::FAILED_PRECONDITION: give_up(reason.empty() ? "refused" : reason, sentence);
            default: failed(sentence);
        }
    }

    void watch() {
        const auto now = call->channel->GetState(true);
        call->channel->NotifyOnStateChange(now, std::min(call->dial_until, after(0.1)), &call->queue,
                                           Call::as_tag(Call::dialed));
    }

    void dialed() {
        if (call->channel->GetState(true) == GRPC_CHANNEL_READY) return open();
        if (Clock::now() < call->dial_until) return watch();
        const auto address = call->answer.assignment().address();
        if (was_direct && ++unreachable < kDeadCollectors)
            return failed(address + " cannot be reached: its collector may have died");
        relay = true;
        say(address + " cannot be reached: the gateway relays");
        pause(0);
    }

    void open() {
        call->stub = pb::SimulationService::NewStub(call->channel);
        call->context.AddMetadata("ludus-ticket", call->answer.assignment().ticket());
        call->stream = call->stub->PrepareAsyncConnect(&call->context, &call->queue);
        call->stream->StartCall(Call::as_tag(Call::started));
        call->stream->Read(&call->incoming, Call::as_tag(Call::got));
        state = State::greeting;
        until = after(60);
    }

    void greet() {
        pb::ConnectRequest request;
        auto* hello = request.mutable_hello();
        hello->set_ticket(call->answer.assignment().ticket());
        hello->set_protocol_version(kVersion);
        hello->set_session_id(session_id);
        hello->set_client(kName);
        for (const auto& part : parts) {
            auto* spec = hello->add_behaviors();
            spec->set_name(part.behavior.name);
            for (const auto& observation : part.behavior.observations) {
                auto* seen = spec->add_observations();
                seen->set_name(observation.name);
                for (const auto side : observation.shape) seen->add_shape(side);
                seen->set_dtype(observation.type == Type::float32 ? pb::DTYPE_FLOAT32 : pb::DTYPE_UINT8);
                if (observation.goal) seen->set_type(pb::OBSERVATION_TYPE_GOAL_SIGNAL);
                if (observation.entities) {
                    seen->add_dimension_properties(pb::DIMENSION_PROPERTY_VARIABLE_SIZE);
                    seen->add_dimension_properties(pb::DIMENSION_PROPERTY_NONE);
                }
            }
            spec->mutable_actions()->set_continuous_size(part.behavior.continuous);
            for (const auto branch : part.behavior.branches) spec->mutable_actions()->add_discrete_branches(branch);
        }
        call->write(std::move(request));
    }

    // --- Playing ----------------------------------------------------------------------------------------------------

    void begin(const google::protobuf::Map<std::string, float>& values) {
        parameters = {values.begin(), values.end()};
        for (auto& part : parts) part.forget();
        staged.Clear();
        received = Clock::now();
        event = Event::start;
    }

    void message(const pb::ConnectResponse& response) {
        switch (response.message_case()) {
            case pb::ConnectResponse::kWelcome:
                failures = unreachable = 0;
                was_direct = was_direct || !call->relayed;
                heard = Clock::now();
                step_id = reset_id = 0;
                seed = response.welcome().seed();
                max_message_bytes = response.welcome().max_message_bytes();
                say("connected to run " + run_id + " as simulator " +
                    std::to_string(response.welcome().simulator_number()));
                state = State::playing;
                return begin(response.welcome().environment_parameters());
            case pb::ConnectResponse::kReset:
                reset_id = response.reset().reset_id();
                return begin(response.reset().environment_parameters());
            case pb::ConnectResponse::kActions: return act(response.actions());
            case pb::ConnectResponse::kWait: return say("waiting: " + response.wait().reason());
            case pb::ConnectResponse::kClose: return closed(response.close());
            default: return;  // of a later version
        }
    }

    void closed(const pb::Close& close) {
        if (close.rejoin()) return failed(close.code() + ": " + close.reason());
        const auto sentence = close.reason();
        const auto code = close.code();
        if (code != "run_finished") give_up(code, sentence);
        say(sentence);
        event = Event::finished;
    }

    void act(const pb::Actions& answer) {
        received = Clock::now();
        if (!answer.environment_parameters().empty())
            parameters = {answer.environment_parameters().begin(), answer.environment_parameters().end()};
        for (const auto& answered : answer.behaviors()) {
            const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
                return part.behavior.name == answered.behavior();
            });
            if (found == parts.end()) continue;
            auto agents = ids_of(*found, {answered.agent_ids().data(), answered.agent_ids().size()});
            const auto asked = found->asked.find(answer.step_id());
            if (asked == found->asked.end()) continue;
            if (agents.empty()) agents = asked->second.agents;
            Actions batch;
            batch.behavior = static_cast<std::size_t>(found - parts.begin());
            const std::size_t columns = found->behavior.continuous, branches = found->behavior.branches.size();
            if (answered.continuous().size() != 4 * agents.size() * columns ||
                answered.discrete().size() != 4 * agents.size() * branches)
                give_up("malformed_message", "the server's actions do not fit the behavior " + found->behavior.name);
            for (std::size_t row = 0; row < agents.size(); ++row) {
                const auto waits = found->waiting.find(agents[row]);
                if (waits == found->waiting.end() || waits->second != answer.step_id()) continue;  // void
                found->answered(agents[row]);
                batch.agents.push_back(agents[row]);
                batch.continuous.resize(batch.agents.size() * columns);
                batch.discrete.resize(batch.agents.size() * branches);
                if (columns)
                    std::memcpy(&batch.continuous[batch.continuous.size() - columns],
                                answered.continuous().data() + 4 * row * columns, 4 * columns);
                if (branches)
                    std::memcpy(&batch.discrete[batch.discrete.size() - branches],
                                answered.discrete().data() + 4 * row * branches, 4 * branches);
            }
            if (!batch.agents.empty()) actions.push_back(std::move(batch));
        }
        if (!actions.empty()) event = Event::actions;
    }

    void flush(bool for_ever) {
        bool is_waiting = false;
        pb::ConnectRequest request;
        auto* step = request.mutable_step();
        step->Swap(&staged);
        for (auto& part : parts) {
            is_waiting = is_waiting || !part.waiting.empty();
            if (!part.staged.has_decisions() && !part.staged.has_terminals()) continue;
            part.staged.set_behavior(part.behavior.name);
            step->add_behaviors()->Swap(&part.staged);
        }
        if (step->behaviors().empty() && step->stats().empty()) {
            if (for_ever && !is_waiting)
                throw Error("nothing_asked",
                            "no agent waits for an action: call `ask` for those that play before `next`");
            return;
        }
        step->set_step_id(++step_id);
        step->set_reset_id(reset_id);
        step->set_game_seconds(std::chrono::duration<float>(Clock::now() - received).count());
        if (request.ByteSizeLong() > max_message_bytes)
            give_up("message_too_large", "a step has " + std::to_string(request.ByteSizeLong()) +
                                             " bytes, and the server takes " + std::to_string(max_message_bytes));
        call->write(std::move(request));
    }

    Part& part(std::size_t behavior) {
        if (behavior >= parts.size())
            throw Error("unknown_behavior", "there is no behavior " + std::to_string(behavior));
        if (state != State::playing)
            throw Error("not_connected", "agents act between a start and the next call of `next` only");
        return parts[behavior];
    }

    void ask(std::size_t behavior, const Columns& columns) {
        auto& asking = part(behavior);
        const auto ids = ids_of(asking, columns.agents);
        for (const auto id : ids)
            if (asking.waiting.count(id))
                refuse("decision_pending", asking, "agent " + std::to_string(id) + " waits for an action already");
        check(asking, "masks", columns.masks, ids.size() * asking.choices);
        if (ids.empty()) return;
        auto& steps = *asking.staged.mutable_decisions();
        const std::size_t before = steps.agent_ids().size() / 4;
        add(asking, columns, steps, ids.size());
        extend(*steps.mutable_action_masks(), columns.masks, before * asking.choices, ids.size() * asking.choices, 1);
        auto& asked = asking.asked[step_id + 1];
        asked.open += ids.size();
        for (const auto id : ids) {
            asked.agents.push_back(id);
            asking.waiting[id] = step_id + 1;
        }
    }

    void end(std::size_t behavior, const Columns& columns) {
        auto& ending = part(behavior);
        const auto ids = ids_of(ending, columns.agents);
        for (const auto id : ids) {
            const auto waits = ending.waiting.find(id);
            if (waits != ending.waiting.end() && waits->second > step_id)
                refuse("duplicate_agent", ending,
                       "agent " + std::to_string(id) + " has just asked for an action: end its episode first");
        }
        check(ending, "truncated", columns.truncated, ids.size());
        check(ending, "outcomes", columns.outcomes, ids.size());
        if (ids.empty()) return;
        auto& steps = *ending.staged.mutable_terminals();
        const std::size_t before = steps.agent_ids().size() / 4;
        add(ending, columns, steps, ids.size());
        extend(*steps.mutable_outcomes(), columns.outcomes, before, ids.size(), 0);
        steps.mutable_truncated()->resize(before);
        if (columns.truncated.size)
            steps.mutable_truncated()->append(static_cast<const char*>(columns.truncated.data), ids.size());
        else
            steps.mutable_truncated()->append(ids.size(), 0);
        for (const auto id : ids) ending.answered(id);
    }

    // Sends what is left, and tells the server that nothing follows; waits for at most a second.
    void leave() {
        if (state != State::playing || !call || fate || event == Event::finished || call->over) return;
        const Time deadline = after(1);
        flush(false);
        void* tag = nullptr;
        bool ok = true, is_half_closed = false;
        while (!call->over) {
            if (call->outbox.empty() && !is_half_closed) {
                call->stream->WritesDone(Call::as_tag(Call::half_closed));
                is_half_closed = true;
            }
            if (call->queue.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return;
            const auto done = static_cast<Call::Tag>(reinterpret_cast<std::intptr_t>(tag));
            if (done == Call::wrote && ok) handle(done, ok);
            if (!ok) return;
            if (done == Call::got) call->stream->Read(&call->incoming, Call::as_tag(Call::got));
        }
    }
};

Options Options::from(int argc, const char* const* argv) {
    Options options;
    options.run = variable("LUDUS_RUN");
    if (const auto server = variable("LUDUS_SIMULATOR_SERVER"); !server.empty()) options.server = server;
    options.token = variable("LUDUS_SIMULATOR_TOKEN");
    if (options.token.empty()) options.token = variable("LUDUS_TOKEN");
    options.ca_file = variable("LUDUS_CA_FILE");
    options.certificate_file = variable("LUDUS_CLIENT_CERTIFICATE");
    options.key_file = variable("LUDUS_CLIENT_KEY");
    for (int i = 1; i + 1 < argc; ++i) {
        const std::string name = argv[i], value = argv[i + 1];
        if (name == "--run")
            options.run = value;
        else if (name == "--server")
            options.server = value;
        else if (name == "--token")
            options.token = value;
        else if (name == "--ca-file")
            options.ca_file = value;
        else if (name == "--connect-timeout")
            options.patience = std::atof(value.c_str());
        else
            continue;
        ++i;
    }
    if (options.run.empty())
        throw Error("usage", "usage: GAME --run RUN [--server HOST:PORT] [--token TOKEN] [--ca-file FILE]");
    return options;
}

Client::Client(Options options, std::vector<Behavior> behaviors)
    : self_(std::make_unique<Implementation>(std::move(options), std::move(behaviors))) {}
Client::~Client() {
    try {
        self_->leave();
    } catch (const Error&) {  // it leaves all the same
    }
}
Event Client::next(double seconds) { return self_->next(seconds); }
void Client::ask(std::size_t behavior, const Columns& columns) { self_->ask(behavior, columns); }
void Client::end(std::size_t behavior, const Columns& columns) { self_->end(behavior, columns); }

namespace detail {
// Columns of one agent; the numbers stay where they are until the call is over.
Columns row_of(const std::int32_t& agent, std::initializer_list<View> observations, const float& reward,
               const Extra& extra) {
    Columns columns;
    columns.agents = {&agent, 4};
    columns.rewards = {&reward, 4};
    columns.observations = observations;
    columns.masks = extra.mask;
    if (extra.group) {
        columns.groups = {&extra.group, 4};
        columns.group_rewards = {&extra.group_reward, 4};
    }
    return columns;
}
}  // namespace detail

void Client::ask(std::int32_t agent, std::initializer_list<View> observations, float reward, const Extra& extra) {
    self_->ask(extra.behavior, row_of(agent, observations, reward, extra));
}

void Client::end(std::int32_t agent, std::initializer_list<View> observations, float reward, bool truncated,
                 const Extra& extra) {
    auto columns = row_of(agent, observations, reward, extra);
    const std::uint8_t is_truncated = truncated;
    columns.truncated = {&is_truncated, 1};
    if (extra.outcome != Outcome::unknown) columns.outcomes = {&extra.outcome, 1};
    self_->end(extra.behavior, columns);
}

void Client::report(const std::string& key, float value, Aggregation aggregation) {
    auto* stat = self_->staged.add_stats();
    stat->set_key(key);
    stat->set_value(value);
    stat->set_aggregation(static_cast<pb::Aggregation>(aggregation));
}

const std::vector<Actions>& Client::actions() const { return self_->actions; }
const std::map<std::string, float>& Client::parameters() const { return self_->parameters; }
float Client::parameter(const std::string& name, float otherwise) const {
    const auto found = self_->parameters.find(name);
    return found == self_->parameters.end() ? otherwise : found->second;
}
std::int64_t Client::seed() const { return self_->seed; }
const std::string& Client::run_id() const { return self_->run_id; }

}  // namespace ludus
