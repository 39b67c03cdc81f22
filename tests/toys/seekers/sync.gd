# Connects the agents to a trainer: the game's side of the protocol, for one step of the game in each message.
extends Node

const Seeker = preload("res://seeker.gd")

var stream = StreamPeerTCP.new()
var agents = []
var arguments = {"port": "11008", "env_seed": "1", "agents": "8", "actions": "continuous", "trouble": "", "at": "50"}
var connected = false
var step = 0


func _ready():
	for argument in OS.get_cmdline_args():
		if argument.begins_with("--") and "=" in argument:
			var parts = argument.substr(2).split("=", true, 1)
			arguments[parts[0]] = parts[1]
	seed(int(arguments["env_seed"]))
	for _number in range(int(arguments["agents"])):
		var agent = Seeker.new()
		agent.mixed = arguments["actions"] == "mixed"
		agent.reset()
		agents.append(agent)
	if arguments["trouble"] == "early":
		printerr("there is no level to load")
		get_tree().quit(3)
		return
	stream.connect_to_host("127.0.0.1", int(arguments["port"]))
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(5)
	connected = stream.get_status() == StreamPeerTCP.STATUS_CONNECTED
	if not connected:
		printerr("no trainer listens on port ", arguments["port"])
		get_tree().quit(4)
		return
	stream.set_no_delay(true)
	print("connected to port ", arguments["port"])


func _physics_process(_delta):
	if not connected:
		return
	var message = receive()
	if message == null or message["type"] == "close":
		connected = false
		get_tree().quit()
	elif message["type"] == "env_info":
		send(env_info())
	elif message["type"] == "reset":
		for agent in agents:
			agent.reset()
			agent.reward = 0.0
			agent.done = false
		send(told("reset"))
	elif message["type"] == "call":
		var returns = []
		for agent in agents:
			returns.append(agent.call(message["method"]) if agent.has_method(message["method"]) else null)
		send({"type": "call", "returns": returns})
	elif message["type"] == "action":
		step += 1
		for index in range(agents.size()):
			agents[index].act(message["action"][index])
		if step == int(arguments["at"]) and make_trouble():
			return
		var answer = told("step")
		answer["reward"] = []
		answer["done"] = []
		for agent in agents:
			answer["reward"].append(agent.reward)
			answer["done"].append(agent.done)
			agent.reward = 0.0
			agent.done = false
		send(answer)


# Returns whether the step stays without an answer.
func make_trouble():
	match arguments["trouble"]:
		"hang":
			while true:
				OS.delay_msec(1000)
		"crash":
			OS.kill(OS.get_process_id())
		"quit":
			printerr("the level is over")
			get_tree().quit(5)
			connected = false
			return true
		"nan":
			agents[0].position = NAN
		"text":
			stream.put_u32(5)
			stream.put_data("hello".to_utf8())
			return true
	return false


func env_info():
	var answer = {"type": "env_info", "n_agents": agents.size(), "observation_space": [], "action_space": [], "agent_policy_names": []}
	for agent in agents:
		answer["observation_space"].append(agent.get_obs_space())
		answer["action_space"].append(agent.get_action_space())
		answer["agent_policy_names"].append("seeker")
	return answer


func told(type):
	var answer = {"type": type, "obs": [], "info": []}
	for agent in agents:
		answer["obs"].append(agent.get_obs())
		answer["info"].append(agent.get_info())
	return answer


func send(message):
	var contents = to_json(message).to_utf8()
	stream.put_u32(contents.size())
	stream.put_data(contents)


# Waits for a message; null when the trainer has gone.
func receive():
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTED and stream.get_available_bytes() < 4:
		OS.delay_usec(10)
	if stream.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		return null
	var message = parse_json(stream.get_utf8_string(stream.get_u32()))
	if message["type"] == "handshake":
		return receive()
	return message
