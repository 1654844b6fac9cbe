"""What strerror(3) says in other languages of files that are missing and of space that is not left.

A prelude's tools speak the language of the account; the words are glibc's.
"""

from __future__ import annotations

import errno

_WORDS: dict[int, tuple[str, ...]] = {
    errno.ENOENT: (
        "No such file or directory",
        "Datei oder Verzeichnis nicht gefunden",  # de
        "Aucun fichier ou dossier",  # fr
        "No existe el fichero o el directorio",  # es
        "No existe el archivo o el directorio",
        "File o directory non esistente",  # it
        "Arquivo ou diretório inexistente",  # pt_BR
        "Ficheiro ou pasta inexistente",  # pt
        "El fitxer o directori no existeix",  # ca
        "Bestand of map bestaat niet",  # nl
        "Nie ma takiego pliku ani katalogu",  # pl
        "Adresář nebo soubor neexistuje",  # cs
        "Adresár alebo súbor neexistuje",  # sk
        "Nincs ilyen fájl vagy könyvtár",  # hu
        "Filen eller katalogen finns inte",  # sv
        "Ingen sådan fil eller filkatalog",  # da
        "Ingen slik fil eller filkatalog",  # nb
        "Tiedostoa tai hakemistoa ei ole",  # fi
        "Нет такого файла или каталога",  # ru
        "Немає такого файла або каталогу",  # uk
        "Δεν υπάρχει τέτοιο αρχείο ή κατάλογος",  # el
        "Böyle bir dosya ya da dizin yok",  # tr
        "そのようなファイルやディレクトリはありません",  # ja
        "그런 파일이나 디렉터리가 없습니다",  # ko
        "没有那个文件或目录",  # zh_CN
        "沒有此一檔案或目錄",  # zh_TW
    ),
    errno.ENOSPC: (
        "No space left on device",
        "kein Speicherplatz",
        "Aucun espace disponible",
        "No queda espacio",
        "Spazio esaurito",
        "Não há espaço disponível",
        "Sem espaço livre",
        "No resta espai",
        "Geen ruimte meer over",
        "Brak miejsca na urządzeniu",
        "Na zařízení není volné místo",
        "Na zariadení už nie je",
        "Nincs több hely",
        "Enheten är full",
        "Ikke mere plads",
        "Ikke mer plass",
        "Laitteella ei ole tilaa",
        "не осталось свободного места",
        "Недостатньо місця",
        "χώρος στη συσκευή",
        "üzerinde boş yer yok",
        "空き領域がありません",
        "남은 공간이 없음",
        "设备上没有空间",
        "裝置上已無多餘空間",
    ),
    errno.EDQUOT: (
        "Disk quota exceeded",
        "(Quota) ist überschritten",
        "Débordement du quota",
        "excedido la cuota",
        "Quota disco superata",
        "Cota da disco excedida",
        "Quota do disco excedida",
        "excedit la quota",
        "Schijfquotum is overschreden",
        "Przekroczony limit dyskowy",
        "Překročena disková kvóta",
        "Disková kvóta prekročená",
        "Lemezkvóta túllépve",
        "Diskkvot överskriden",
        "Diskkvoten overskredet",
        "Levykiintiö ylittynyt",
        "Превышена дисковая квота",
        "Перевищено квоту диска",
        "όριο χρήσης δίσκου",
        "Disk kotası aşıldı",
        "ディスク使用量制限を超過しました",
        "디스크 할당량이 초과됨",
        "超出磁盘限额",
        "磁碟配額已滿",
    ),
}
_LOWERED = {number: tuple(map(str.lower, words)) for number, words in _WORDS.items()}


def number_in(line: str) -> int | None:
    """ENOENT, ENOSPC or EDQUOT, if a line says so in any of these languages."""
    lowered = line.lower()
    return next(
        (number for number, words in _LOWERED.items() if any(w in lowered for w in words)), None
    )
