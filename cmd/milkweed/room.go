package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// countTime bounds how long check counts the files of a source.
const countTime = 3 * time.Second

// notCounted says why not all files were counted.
const notCounted = "not all files were counted, which `milkweed warmup --dry-run` does after the mount"

// checkRoom compares what the copies of a dataset need with what the tiers of cfg have. It lists a
// directory for that, for countTime. A bucket is not listed, because requests cost money; checkManifest
// compares what a manifest says.
func checkRoom(ctx context.Context, cfg *config.Config) []check.Finding {
	switch _, listed := placeOf(cfg.Source); {
	case listed || len(cfg.Tiers) == 0:
		return nil
	case cfg.Source.URL != "":
		return roomFor(ctx, cfg, check.Need{Partial: "the objects of a bucket are not counted, which `milkweed warmup --dry-run` does after the mount"})
	}
	var counted check.Need // the function may set it later, after errLeftBehind
	err := atMost(countTime+endTime, func() (err error) {
		counted, err = countSource(ctx, cfg)
		return err
	})
	switch {
	case errors.Is(err, errLeftBehind):
		return roomFor(ctx, cfg, check.Need{Partial: notCounted})
	case err != nil || counted.Files == 0 && counted.Partial == "":
		return nil // the finding of the source says why, or there are no files
	}
	return roomFor(ctx, cfg, counted)
}

// roomFor returns the finding about the room for a dataset, in tiers that a mount may use: those in
// memory are also bounded by the control group.
func roomFor(ctx context.Context, cfg *config.Config, need check.Need) []check.Finding {
	return check.Room(ctx, boundedConfig(cfg, config.MemoryLimit()), need)
}

// boundedConfig returns the configuration that a mount uses if the control group permits a number of bytes of memory.
func boundedConfig(cfg *config.Config, limit int64) *config.Config {
	bounded := *cfg
	bounded.Tiers = slices.Clone(cfg.Tiers)
	ram := memoryTiers(&bounded)
	planMemory(limit, len(ram) > 0).bound(&bounded, ram, slog.New(slog.DiscardHandler))
	return &bounded
}

// checkMemory examines whether the control group permits enough bytes of memory for a mount, and for its tiers in
// memory.
func checkMemory(cfg *config.Config, limit int64) (findings []check.Finding) {
	if limit < minMemory {
		err := tooLittleMemory(limit)
		return []check.Finding{{Name: "memory", Status: check.Problem, Detail: err.Err.Error(), Remedy: err.Remedy, Code: err.Code, Err: err}}
	}
	for i, t := range boundedConfig(cfg, limit).Tiers {
		if given := cfg.Tiers[i].Quota; t.Quota != given {
			findings = append(findings, check.Finding{
				Name:   "tier " + t.Name,
				Status: check.Warning,
				Detail: fmt.Sprintf("the quota is %s, and a mount uses %s: copies in memory are part of the %s of memory that the control group permits", given, size(t.Quota.Bytes), size(limit)),
				Remedy: check.RaiseMemory,
			})
		}
	}
	return findings
}

// countSource counts the files of a source for countTime, with at most as many operations per second as
// a mount may make.
func countSource(ctx context.Context, cfg *config.Config) (need check.Need, err error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	s, _, err := openShown(ctx, cfg, nil)
	if err != nil {
		return need, err
	}
	defer s.Close()
	log := slog.New(slog.DiscardHandler)
	limited := limit.New(s, limit.Config{OpsPerSecond: cfg.Source.Operations, Transparent: true})
	levels, err := tiers.New(limited, nil, tiers.Options{}, log)
	if err != nil {
		return need, err
	}
	names, err := metadata.New(ctx, levels, metadata.Options{TTL: time.Hour}, log)
	if err != nil {
		return need, err
	}
	defer names.Close()
	var failed int64
	err = names.Walk(ctx, []*metadata.Entry{names.Root()}, func(e *metadata.Entry, err error) error {
		switch {
		case err != nil:
			failed++
		case e.IsDir():
			need.Dirs++
		case e.IsRegular():
			need.Add(e.Size())
		}
		return nil
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		need.Partial, err = notCounted, nil
	case failed > 0:
		need.Partial = plural(failed, "name", "names") + " cannot be read"
	}
	return need, err
}

// needOf returns what the files of a manifest need.
func needOf(m *manifest.Manifest) (need check.Need) {
	for e := range m.All() {
		switch {
		case e.IsDir():
			need.Dirs++
		case e.IsRegular():
			need.Add(e.Size)
		}
	}
	return need
}
