"""Linen modules that models are made of; they own parameters and call `ops`.

    layers   projection, position embedding, dropout, feed-forward network
    blocks   attention blocks of both geometries, and their options
    bank     K windowed blocks over the same input, vmapped for each geometry
    fusion   the outputs of a bank become one sequence; pooling

Options are frozen dataclasses: `BlockOptions`, `LorentzOptions`, `BankOptions`.
"""
