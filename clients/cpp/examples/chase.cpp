// A game of one's own that learns: hunters on a board of 5 x 5, each of which catches a prey that flees now and then.
//
//     ludus run create clients/cpp/examples/chase.yaml --name chase && build/chase --run chase
#include <array>
#include <cstdlib>
#include <iostream>
#include <random>

#include "ludus.hpp"

namespace {

constexpr int kSize = 5, kHunters = 16, kLimit = 30;

struct Hunt {
    int x, y, prey_x, prey_y, moves;

    std::array<float, 4> seen() const {  // where the hunter is, and the way to the prey
        return {x / 4.0F, y / 4.0F, (prey_x - x) / 4.0F, (prey_y - y) / 4.0F};
    }
};

int moved(int place, int by) { return std::min(std::max(place + by, 0), kSize - 1); }

}  // namespace

int main(int argc, char** argv) try {
    const ludus::Behavior hunter{"Hunter", {{"board", {4}}}, 0, {5}};  // stay, left, right, up, down
    ludus::Client client(ludus::Options::from(argc, argv), {hunter});
    std::mt19937 random;
    bool is_seeded = false;
    std::array<Hunt, kHunters> hunts{};
    const auto begin = [&](int agent) {
        std::uniform_int_distribution<int> place(0, kSize - 1);
        hunts[agent] = {place(random), place(random), place(random), place(random), 0};
    };

    for (;;) switch (client.next()) {
            case ludus::Event::start:
                if (!is_seeded) random.seed(static_cast<unsigned>(client.seed()));
                is_seeded = true;
                for (int agent = 0; agent < kHunters; ++agent) {
                    begin(agent);
                    client.ask(agent, {hunts[agent].seen()});
                }
                break;
            case ludus::Event::actions:
                for (const auto& answers : client.actions())
                    for (std::size_t i = 0; i < answers.agents.size(); ++i) {
                        const int agent = answers.agents[i], choice = answers.discrete[i];
                        Hunt& hunt = hunts[agent];
                        hunt.x = moved(hunt.x, (choice == 2) - (choice == 1));
                        hunt.y = moved(hunt.y, (choice == 4) - (choice == 3));
                        const bool is_caught = hunt.x == hunt.prey_x && hunt.y == hunt.prey_y;
                        const bool is_late = ++hunt.moves >= kLimit;
                        if (is_caught || is_late) {
                            client.end(agent, {hunt.seen()}, is_caught ? 1.0F : 0.0F, !is_caught);
                            client.report("Chase/Moves", static_cast<float>(hunt.moves));
                            begin(agent);
                            client.ask(agent, {hunt.seen()});  // the next episode begins in the same message
                            continue;
                        }
                        if (random() % 4 == 0) hunt.prey_x = moved(hunt.prey_x, random() % 2 ? 1 : -1);
                        client.ask(agent, {hunt.seen()}, -0.02F);
                    }
                break;
            case ludus::Event::nothing: break;  // never without a limit of time
            case ludus::Event::finished: return EXIT_SUCCESS;
        }
} catch (const ludus::Error& error) {
    std::cerr << error.code() << ": " << error.what() << "\n";
    return EXIT_FAILURE;
}
