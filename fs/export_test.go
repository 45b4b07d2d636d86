package fs

// DisableEpochs makes the mount behave as with a kernel that counts no epochs. No name of the root may
// have been looked up.
func (m *Mount) DisableEpochs() { m.fs.epochs.Store(false) }

// HasEpochs reports whether the kernel counts epochs.
func (m *Mount) HasEpochs() bool { return m.fs.epochs.Load() }
