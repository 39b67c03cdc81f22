"""The memory of a network: an LSTM (Hochreiter & Schmidhuber 1997) behind its hidden layers.

Initialised as in ML-Agents: each gate's weights Xavier uniform, biases 0 but those of the forget gate, which are 1 in
*both* bias vectors. The state is `[h | c]`, half each. Gates lie in torch's order: input, forget, cell, output.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

FORGET_BIAS = 1.0
FORGET = 1
"""The forget gate's place among the four."""


class Memory(nn.Module):
    """An LSTM over sequences. Dimensions: `Q` sequences, `L` steps each, `R = Q * L` rows, `S` width of the state."""

    def __init__(self, inputs: int, memory_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.units = memory_size // 2
        self.input_weight = nn.Parameter(torch.empty(4 * self.units, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(4 * self.units, self.units))
        self.input_bias = nn.Parameter(torch.zeros(4 * self.units))
        self.hidden_bias = nn.Parameter(torch.zeros(4 * self.units))
        with torch.no_grad():
            for weight in (self.input_weight, self.hidden_weight):
                for gate in weight.chunk(4):
                    nn.init.xavier_uniform_(gate, generator=generator)
            for bias in (self.input_bias, self.hidden_bias):
                bias.chunk(4)[FORGET].fill_(FORGET_BIAS)

    def forward(
        self, inputs: Float[Tensor, "R I"], state: Float[Tensor, "Q S"] | None, length: int
    ) -> tuple[Float[Tensor, "R U"], Float[Tensor, "Q S"]]:
        """Return the hidden state after each row and the whole state after each sequence, rows sequence by sequence.

        `state` is the one before each sequence; None is all zeros.
        """
        steps = inputs.view(-1, length, inputs.shape[1])  # (Q, L, I)
        if state is None:
            state = inputs.new_zeros(len(steps), 2 * self.units)
        hidden, cell = (part.unsqueeze(0).contiguous() for part in state.chunk(2, 1))
        parameters: list[Tensor] = [self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias]
        outputs, hidden, cell = torch.lstm(
            steps,
            (hidden, cell),
            parameters,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return outputs.reshape(-1, self.units), torch.cat([hidden, cell], 2).squeeze(0)
