"""The file formats under almost every checkpoint, read without torch and without running a byte of them.

- `reading`: where bytes come from; windows; what is worth a finding but stops nobody from reading on.
- `pickles`: a pickle as an inert description. `opcodes` and `literals` execute it on a `machine` of plain data,
  `meaning` and `rebuilding` say what its names stand for, `stubs` stand for objects, `shape` bounds all of it.
- `torchzip`: the zip that `torch.save` writes, with a CRC-32 for each record; `zipdirectory` reads its end. `legacy`:
  what it wrote before.
- `torchfile`: either of them, opened as one description with its tensors held against its storages.
- `tensors`: the header of safetensors, and the index over several such files.
- `dcpmetadata`: `.metadata` of torch DCP.

Rules: nothing is imported, looked up or called because a file names it (docs/adr/0010); every count, length and depth
has a named limit; whatever is not lawful is a `FormatError` that names the file and the place.
"""
