package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// Nodes implements control.Daemon.
func (d *daemon) Nodes() (nodes, self int) {
	if p := d.levels.Peers(); p != nil {
		return p.Nodes()
	}
	return 1, 0
}

// StartExchange implements control.Daemon.
func (d *daemon) StartExchange(ctx context.Context, cfg placement.ExchangeConfig, epoch, reader, readers int) error {
	if d.draining.Load() {
		return errDraining
	}
	if g := d.names.Generation(); g != "" { // nodes that show other generations have another exchange
		cfg.Dir = g
		sum := sha256.Sum256([]byte(cfg.ID + "/" + g))
		cfg.ID = hex.EncodeToString(sum[:16])
	}
	return exchangeError(d.handler.StartExchange(ctx, cfg, epoch, reader, readers))
}

// BeginEpoch implements control.Daemon.
func (d *daemon) BeginEpoch(id string, epoch, reader, readers int) error {
	return exchangeError(d.handler.BeginEpoch(id, epoch, reader, readers))
}

// exchangeError returns an error of an exchange with its remedy.
func exchangeError(err error) error {
	switch {
	case errors.Is(err, placement.ErrExchangeRoom):
		return &exit.Error{Code: exit.Tier, Err: err, Remedy: "Raise the quotas, use more nodes, or lower the fraction. Without an exchange, the files are read as before."}
	case errors.Is(err, placement.ErrExchange):
		return &exit.Error{Code: exit.Usage, Err: err, Remedy: "All nodes of the job must be in peers.roster, and no others; peers.group must not divide them."}
	}
	return err
}

// Exchange implements control.Daemon.
func (d *daemon) Exchange() placement.ExchangeStats { return d.handler.ExchangeStats() }

// StopExchange implements control.Daemon.
func (d *daemon) StopExchange() { d.handler.StopExchange() }
