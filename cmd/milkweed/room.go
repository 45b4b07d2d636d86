package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// checkRoom compares what the files of a directory need with the room in the tiers of cfg. Those of a bucket are not
// counted, because the requests cost money; for a manifest, checkManifest compares.
func checkRoom(ctx context.Context, cfg *config.Config) []check.Finding {
	if _, listed := placeOf(cfg.Source); listed || cfg.Source.URL != "" || len(cfg.Tiers) == 0 {
		return nil
	}
	return check.Room(ctx, cfg, func(ctx context.Context) (check.Need, error) { return countSource(ctx, cfg) })
}

// countSource counts the files of a source until ctx is done.
func countSource(ctx context.Context, cfg *config.Config) (need check.Need, err error) {
	s, _, err := openShown(ctx, cfg, nil)
	if err != nil {
		return need, err
	}
	defer s.Close()
	log := slog.New(slog.DiscardHandler)
	levels, err := tiers.New(s, nil, tiers.Options{}, log)
	if err != nil {
		return need, err
	}
	names, err := metadata.New(ctx, levels, metadata.Options{TTL: time.Hour}, log)
	if err != nil {
		return need, err
	}
	defer names.Close()
	failed := 0
	err = names.Walk(ctx, []*metadata.Entry{names.Root()}, func(e *metadata.Entry, err error) error {
		switch {
		case err != nil:
			failed++
		case e.IsRegular():
			need.Add(tiers.Allocated(e.Size()))
		}
		return nil
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		need.Partial, err = "it took too long to count all files, which `milkweed warmup --dry-run` does after the mount", nil
	case failed > 0:
		need.Partial = plural(int64(failed), "name", "names") + " cannot be read"
	}
	return need, err
}

// needOf returns what the files of a manifest need.
func needOf(m *manifest.Manifest) (need check.Need) {
	for e := range m.All() {
		if e.IsRegular() {
			need.Add(tiers.Allocated(e.Size))
		}
	}
	return need
}
