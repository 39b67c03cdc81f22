// The game: stars fall, and each basket catches the one above it. No drawing here, so it runs in a page and in Node.js.

export const WIDTH = 7, HEIGHT = 6;

/** What an agent sees and does: [basket, star, height of the star] from -1 to 1; left, stay, right. */
export const BEHAVIORS = { Basket: { observations: [[3]], branches: [3] } };

export class Sky {
  /** @param {number} baskets Each is an agent with a star of its own. */
  constructor(baskets) {
    this.lanes = Array.from({ length: baskets }, (_, id) => ({ id, basket: 0, star: 0, height: 0, caught: null }));
    this.results = []; // 1 or -1 of each star that is down
  }

  /** Begin an episode of every basket; return the first step. */
  begin() {
    this.lanes.forEach((lane) => this.throwStar(lane));
    return { Basket: { decide: this.lanes.map(look) } };
  }

  /** Carry out the actions; return the next step. */
  tick(actions) {
    const decide = [], end = [];
    for (const lane of this.lanes) {
      lane.basket = Math.min(Math.max(lane.basket + actions.get(lane.id).discrete[0] - 1, 0), WIDTH - 1);
      lane.height -= 1;
      if (lane.height === 0) {
        lane.caught = lane.basket === lane.star;
        this.results.push(lane.caught ? 1 : -1);
        end.push({ ...look(lane), reward: lane.caught ? 1 : -1 });
        this.throwStar(lane);
      }
      decide.push(look(lane)); // where a star is down, this begins the next episode
    }
    return { Basket: { decide, end } };
  }

  throwStar(lane) {
    Object.assign(lane, { star: Math.floor(WIDTH * Math.random()), height: HEIGHT });
  }

  /** Mean result of the last stars; null before so many are down. */
  mean(count = 200) {
    const newest = this.results.slice(-count);
    return newest.length < count ? null : newest.reduce((sum, result) => sum + result, 0) / count;
  }
}

const scale = (value, most) => (2 * value) / most - 1;
const look = ({ id, basket, star, height }) => ({
  id,
  observations: [[scale(basket, WIDTH - 1), scale(star, WIDTH - 1), scale(height, HEIGHT)]],
});
