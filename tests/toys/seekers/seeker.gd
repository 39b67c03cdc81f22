# One agent on a line: it sees its distance from the middle, and how much time is left, and earns most if it stays there.
extends Reference

const STEPS = 20

var position = 0.0
var age = 0
var reward = 0.0
var done = false
var level = 0
var mixed = false
var succeeded = false


func reset():
	position = rand_range(-1.0, 1.0)
	age = 0


func get_obs_space():
	return {"obs": {"size": [2], "space": "box"}}


func get_obs():
	return {"obs": [position, 1.0 - float(age) / STEPS]}


func get_action_space():
	if mixed:
		return {"boost": {"size": 3, "action_type": "discrete"}, "move": {"size": 1, "action_type": "continuous"}}
	return {"move": {"size": 1, "action_type": "continuous"}}


func act(action):
	var speed = 0.1
	if mixed:
		speed *= 1.0 + action["boost"]
	position += speed * clamp(action["move"][0], -1.0, 1.0)
	reward -= abs(position)
	age += 1
	if age == STEPS:
		done = true
		succeeded = abs(position) < 0.25
		reset()


func get_info():
	return {"is_success": succeeded} if done else {}


func set_level_1():
	level = 1
	return true


func get_level():
	return level
