package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/manifest"
)

// With source.manifest, the names of a mount come from a manifest, which is read once: at the start, or
// when a generation is first used.

// A manifestPlace is where the manifest of a configuration is.
type manifestPlace struct {
	path   string // of a file of this machine; "" for one in the dataset
	inside string // the name of a file in the dataset
}

// placeOf returns the place of source.manifest. It reports false if there is no manifest.
func placeOf(c config.Source) (manifestPlace, bool) {
	if name, ok := strings.CutPrefix(c.Manifest, config.ManifestInDataset); ok {
		return manifestPlace{inside: name}, true
	}
	return manifestPlace{path: c.Manifest}, c.Manifest != ""
}

// String returns the place as in the configuration.
func (p manifestPlace) String() string {
	if p.inside != "" {
		return config.ManifestInDataset + p.inside
	}
	return p.path
}

// load reads the manifest of the dataset that source shows.
func (p manifestPlace) load(ctx context.Context, source drivers.Driver) (*manifest.Manifest, error) {
	if p.inside != "" {
		m, err := manifest.Open(ctx, source, p.inside)
		if err != nil {
			return nil, p.error(err)
		}
		return m, nil
	}
	f, err := os.Open(p.path)
	if err != nil {
		return nil, p.error(err)
	}
	defer f.Close()
	m, err := manifest.Load(f)
	if err != nil {
		return nil, p.error(fmt.Errorf("%s: %w", text(p.path), err))
	}
	return m, nil
}

// error returns the error of a command for err, of reading the manifest.
func (p manifestPlace) error(err error) error {
	e := &exit.Error{Code: exit.Usage, Err: fmt.Errorf("source.manifest: %w", err), Remedy: "`milkweed manifest --help` shows how to write one."}
	if errors.Is(err, manifest.ErrDamaged) {
		e.Remedy = "Copy it again from where it is complete, or write it again with `milkweed manifest`."
	}
	if p.inside != "" && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, manifest.ErrNone) {
		e.Code = exit.Source
	}
	return e
}

// checkManifest reports on the manifest of cfg, if there is one and the source can be opened.
func checkManifest(ctx context.Context, cfg *config.Config) []check.Finding {
	place, ok := placeOf(cfg.Source)
	if !ok {
		return nil
	}
	shown, p, err := openShown(ctx, cfg, nil)
	if err != nil {
		return nil // the finding of the source says why
	}
	defer shown.Close()
	if p.generation != "" && place.path != "" {
		return check.Manifest(place.String(), nil, place.ofOne())
	}
	m, err := place.load(ctx, shown)
	findings := check.Manifest(place.String(), m, err)
	if err == nil && len(cfg.Tiers) > 0 {
		findings = append(findings, roomFor(ctx, cfg, needOf(m))...)
	}
	return findings
}

// ofOne is the error for a manifest that is not in the dataset, if the source has generations.
func (p manifestPlace) ofOne() error {
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("source.manifest: %s is the manifest of one generation, and the source has several", text(p.path)),
		Remedy: fmt.Sprintf("Write a manifest into each generation, and set manifest = %q.", config.ManifestInDataset+"manifest.mtree"),
	}
}

// withManifest returns source, or a driver that has the names of the manifest of cfg.
func (d *daemon) withManifest(ctx context.Context, source drivers.Driver) (drivers.Driver, error) {
	place, ok := placeOf(d.cfg.Source)
	switch {
	case !ok:
		return source, nil
	case d.pin.generation == "":
		m, err := place.load(ctx, source)
		if err != nil {
			return nil, err
		}
		d.listed = m
		d.logManifest(place.String(), m)
		shown := manifest.New(source, m)
		if place.path == "" {
			shown.Follow(func(ctx context.Context) (*manifest.Manifest, error) { return place.load(ctx, source) })
		}
		return shown, nil
	case place.path != "":
		return nil, place.ofOne()
	}
	d.manifests = manifest.NewGenerations(source, place.inside)
	m, err := d.manifestOf(ctx, d.pin.generation)
	d.listed = m
	return d.manifests, err
}

// manifestOf returns the manifest of a generation, or nil if they have none.
func (d *daemon) manifestOf(ctx context.Context, generation string) (*manifest.Manifest, error) {
	if d.manifests == nil {
		return nil, nil
	}
	m, err := d.manifests.Generation(ctx, generation)
	if err != nil {
		place, _ := placeOf(d.cfg.Source)
		return nil, place.error(err)
	}
	d.logManifest(generation, m)
	return m, nil
}

func (d *daemon) logManifest(name string, m *manifest.Manifest) {
	d.log.Info("manifest", "of", name, "files", m.Files, "bytes", m.Bytes, "sha256", fmt.Sprintf("%x", m.Sum))
	if m.Unsealed {
		d.log.Warn("the manifest has no end that shows that it is complete: milkweed manifest has not written it", "manifest", name, "names", m.Names)
	}
}
